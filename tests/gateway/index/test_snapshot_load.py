"""A snapshot comes in no order, some of it twice: the index ends up as if all had been stored in order."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.prefix import PrefixIndex
from gateway.kv.parted import PartedKeys
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("a"), WorkerId("b")


def parent_of(node: int) -> int:
    """Nodes from 1; 0 is none: three roots, then three children each."""
    return (node - 1) // 3


def path(node: int) -> list[BlockKey]:
    found = []
    while node:
        found.append(BlockKey(node))
        node = parent_of(node)
    return found[::-1]


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
    """`others` are held by another worker, `before` came from the stream before their page did."""
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
    same = PartedKeys[int]()
    for start in range(0, len(records), 7):
        loaded.load(A, records[start : start + 7], same)
    loaded.load(A, records[:3], same)  # a scan may give an entry twice
    for node, count in sorted(copies.items()):
        for _ in range(count):
            stored.store(A, [BlockKey(node)], BlockKey(parent_of(node)) if parent_of(node) else None)
    loaded.check_integrity()
    for node in range(1, 61):
        key = BlockKey(node)
        assert loaded.copies(A, key) == stored.copies(A, key) == copies.get(node, 0)
        assert loaded.match(path(node), 0.0) == stored.match(path(node), 0.0)


def test_what_was_promised_and_is_held_is_no_promise_any_more() -> None:
    index = PrefixIndex()
    index.add_worker(A)
    index.place(A, [BlockKey(1), BlockKey(4)], 0.0)
    index.load(A, [(1, 0, 1)], PartedKeys())
    assert index.stats().placed_pairs == 1
    assert index.match(path(4), 100.0) == {A: 1}, "the promise of the other ran out"


def test_a_snapshot_for_a_worker_that_is_gone_changes_nothing() -> None:
    index = PrefixIndex()
    index.load(A, [(1, 0, 1)], PartedKeys())
    assert index.stats().blocks == 0
