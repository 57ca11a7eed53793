"""A ledger and an index against an engine's true holdings, with stores that come before their parents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events.ledger import Ledger
from gateway.index.changes import apply_changes
from gateway.index.prefix import PrefixIndex
from gateway.kv.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope, WorkerId

W = WorkerId("w")
NODES = 40


def path(node: int) -> list[int]:
    """Block numbers from a root to `node`; each node's parent is (node - 1) // 3, roots are 1, 2 and 3."""
    found = []
    while node:
        found.append(node)
        node = (node - 1) // 3
    return found[::-1]


def tokens(node: int) -> tuple[int, ...]:
    return tuple(range(node * 100, node * 100 + 16))


def key(node: int) -> BlockKey:
    flat = [token for block in path(node) for token in tokens(block)]
    return block_keys(root_key(CacheScope("m")), pack_tokens(flat))[-1]


KEYS = {node: key(node) for node in range(1, NODES)}


@dataclass(frozen=True)
class History:
    events: list[KVEvent]
    late: list[int]
    """How much later than its turn each event is delivered."""
    truth: Counter[int]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """An engine that stores runs, copies too, and evicts ends first. Only stores of blocks that stay may be
    late: what comes after its parent's eviction can't be placed by anybody."""
    truth: Counter[int] = Counter()
    stores: list[tuple[int, list[int]]] = []
    events: list[KVEvent] = []
    evicted: set[int] = set()
    for _ in range(draw(st.integers(1, 25))):
        ends = [n for n in truth if truth[n] and not any(truth[c] for c in range(3 * n + 1, 3 * n + 4))]
        if ends and draw(st.booleans()):
            node = draw(st.sampled_from(ends))
            truth[node] -= 1
            evicted.add(node)
            events.append(BlockRemoved((node,)))
            continue
        run = path(draw(st.integers(1, NODES - 1)))
        start = 0
        while start < len(run) - 1 and truth[run[start]]:  # the engine computes what it does not hold
            start += 1
        if start and draw(st.booleans()):
            start -= 1  # or computes a block twice
        run, parent = run[start:], run[start - 1] if start else None
        truth.update(run)
        stores.append((len(events), run))
        flat = tuple(token for node in run for token in tokens(node))
        events.append(BlockStored(tuple(run), parent, flat, 16))
    late = [0] * len(events)
    for place, run in stores:
        if not evicted.intersection(run):
            late[place] = draw(st.integers(0, 10))
    return History(events, late, +truth)


@settings(deadline=None)
@given(histories(), st.integers(1, 4))
def test_books_end_up_right_whatever_came_first(history: History, per_batch: int) -> None:
    turns = sorted(range(len(history.events)), key=lambda i: (i + history.late[i], i))
    delivered = [history.events[turn] for turn in turns]
    ledger, index = Ledger("m"), PrefixIndex()
    index.add_worker(W)
    for start in range(0, len(delivered), per_batch):
        batch = EventBatch(0.0, tuple(delivered[start : start + per_batch]))
        apply_changes(index, W, ledger.apply(batch))
    expected = {KEYS[node]: count for node, count in history.truth.items()}
    assert dict(ledger.holdings()) == expected
    assert {key: index.copies(W, key) for key in index.held(W)} == expected
    index.check_integrity()


@settings(deadline=None)
@given(histories(), st.integers(0, 25))
def test_a_successor_in_the_middle_changes_nothing(history: History, cut: int) -> None:
    first, second = Ledger("m"), Ledger("m")
    for event in history.events[:cut]:
        first.apply(EventBatch(0.0, (event,)))
    books = first.whole()
    second.resume(first.stride, first.group)
    for block, entry in books.blocks():
        second.recall(block, entry.keys, entry.copies)
    for number, waiting in books.waiting.items():
        second.recall_waiting(waiting, number)
    for event in history.events[cut:]:
        assert second.apply(EventBatch(0.0, (event,))) == first.apply(EventBatch(0.0, (event,)))
    assert dict(second.holdings()) == {KEYS[node]: count for node, count in history.truth.items()}


@settings(deadline=None)
@given(histories(), st.integers(0, 25))
def test_without_the_beginning_nothing_is_rooted_wrongly(history: History, lost: int) -> None:
    """Whatever is held is held rightly: by its true key, never by one that a prompt could hit by mistake."""
    ledger = Ledger("m")
    for event in history.events[lost:]:
        ledger.apply(EventBatch(0.0, (event,)))
    assert {key for key, _ in ledger.holdings()} <= set(KEYS.values())
