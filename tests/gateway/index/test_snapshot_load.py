"""A snapshot comes in no order, some of it twice: the index ends up as if all had been stored in order."""

from __future__ import annotations

from random import Random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import StoreError
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.unordered import MOST, Unordered
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("a"), WorkerId("b")
_RECORD = Struct("<QQI")


def parent_of(node: int) -> int:
    """Nodes from 1; 0 is none: three roots, then three children each."""
    return (node - 1) // 3


def path(node: int) -> list[BlockKey]:
    found = []
    while node:
        found.append(BlockKey(node))
        node = parent_of(node)
    return found[::-1]


def packed(*records: tuple[int, int, int]) -> bytes:
    return b"".join(_RECORD.pack(*record) for record in records)


def scanned(*records: tuple[int, int, int]) -> Unordered:
    found = Unordered()
    found.add(packed(*records))
    return found


def load(index: PrefixIndex, worker: WorkerId, found: Unordered) -> None:
    for run, before in found.runs():
        index.load(worker, run, before, found.copies)


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 60), st.integers(1, 3)),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
    st.integers(0, 99),
)
def test_loaded_in_any_order_it_is_what_was_stored_in_order(
    copies: dict[int, int], others: set[int], before: set[int], seed: int
) -> None:
    """`others` are held by another worker, `before` came by another way than the snapshot did."""
    loaded, stored = PrefixIndex(), PrefixIndex()
    for index in (loaded, stored):
        for worker in (A, B):
            index.add_worker(worker)
        for node in sorted(others):
            index.store(B, path(node))
    for node in sorted(before):
        loaded.store(A, [BlockKey(node)], BlockKey(parent_of(node)) if parent_of(node) else None)
    for node in sorted(before - copies.keys()):
        loaded.remove(A, [BlockKey(node)])
    records = [(node, parent_of(node), count) for node, count in copies.items()]
    Random(seed).shuffle(records)
    found = Unordered()
    for node, parent, _ in records[:3]:  # a scan may give an entry twice, and another count each time
        found.add(packed((node, parent, 2)))
    for start in range(0, len(records), 7):
        found.add(packed(*records[start : start + 7]))
    assert len(found) == len(records)
    load(loaded, A, found)
    assert len(found) == 0
    for node, count in sorted(copies.items()):
        for _ in range(count):
            stored.store(A, [BlockKey(node)], BlockKey(parent_of(node)) if parent_of(node) else None)
    loaded.check_integrity()
    for node in range(1, 61):
        key = BlockKey(node)
        assert loaded.copies(A, key) == stored.copies(A, key) == copies.get(node, 0)
        assert loaded.match(path(node), 0.0) == stored.match(path(node), 0.0)


def test_blocks_are_taken_out_by_prompts() -> None:
    """5 → 3 → 1 and 4 → 3; of 9 what comes before it was not among them."""
    runs = list(scanned((5, 3, 1), (1, 0, 1), (9, 7, 2), (4, 3, 1), (3, 1, 1)).runs())
    assert sorted(runs) == [([1, 3, 4], None), ([5], 3), ([9], 7)]


def test_a_long_prompt_is_several_runs() -> None:
    """So that nobody waits for all of it."""
    blocks = 2 * MOST + 1
    records = [(key, key - 1, 1) for key in range(1, blocks + 1)]
    Random(3).shuffle(records)
    runs = list(scanned(*records).runs())
    assert [(run[0], run[-1], before) for run, before in runs] == [
        (MOST + 2, blocks, MOST + 1), (2, MOST + 1, 1), (1, 1, None),
    ]  # fmt: skip


def test_keys_that_go_in_a_circle_are_each_taken_once() -> None:
    """No hash does that; somebody's own bytes in Redis may."""
    runs = list(scanned((1, 2, 1), (2, 1, 1), (3, 3, 1)).runs())
    assert sorted(key for run, _ in runs for key in run) == [1, 2, 3]


def test_bytes_that_nobody_wrote_are_refused() -> None:
    with pytest.raises(StoreError, match="records of 21 bytes"):
        Unordered().add(packed((1, 0, 1)) + b"x")


def test_what_was_promised_and_is_held_is_no_promise_any_more() -> None:
    index = PrefixIndex()
    index.add_worker(A)
    index.place(A, [BlockKey(1), BlockKey(4)], 0.0)
    index.load(A, [BlockKey(1)], None, {})
    assert index.stats().placed_pairs == 1
    assert index.match(path(4), 100.0) == {A: 1}, "the promise of the other ran out"


def test_a_snapshot_for_a_worker_that_is_gone_changes_nothing() -> None:
    index = PrefixIndex()
    index.load(A, [BlockKey(1)], None, {})
    assert index.stats().blocks == 0
