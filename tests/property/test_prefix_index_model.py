"""The index against a model that does everything the obvious way, over random histories."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.index.holding import UNKNOWN
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId

WORKERS = [WorkerId(name) for name in "abcd"]
TTL = 5.0

# a small forest of prompts: eight chains of 30, of which all but two leave another one at its 12th node
CHAIN = 30
NODES = range(8 * CHAIN)


def parent_of(node: int) -> int | None:
    chain, place = divmod(node, CHAIN)
    if place:
        return node - 1
    return chain // 2 * CHAIN + 11 if chain > 1 else None


def path(node: int) -> list[int]:
    """From the root to `node`: up to 54."""
    found: list[int] = []
    at: int | None = node
    while at is not None:
        found.append(at)
        at = parent_of(at)
    return found[::-1]


def keys_of(nodes: list[int]) -> list[BlockKey]:
    return [BlockKey((node + 1) * 0x9E3779B97F4A7C15 % 2**64) for node in nodes]


workers = st.sampled_from(WORKERS)
nodes = st.sampled_from(NODES)


class IndexHistory(RuleBasedStateMachine):
    """Counters and loops on one side, bits and links on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.held: dict[WorkerId, Counter[BlockKey]] = {}
        self.placed: dict[tuple[WorkerId, BlockKey], float] = {}
        self.claims: Counter[tuple[WorkerId, BlockKey]] = Counter()
        self.decisions: list[tuple[WorkerId, list[BlockKey], float]] = []
        self.stored: list[tuple[WorkerId, list[int]]] = []

    @initialize()
    def start(self) -> None:
        self.index = PrefixIndex(placement_ttl=TTL)
        self.inspection = self.index.inspect()

    @rule(worker=workers)
    def add(self, worker: WorkerId) -> None:
        self.index.add_worker(worker)
        self.held.setdefault(worker, Counter())

    @rule(worker=workers)
    def remove_worker(self, worker: WorkerId) -> None:
        self.index.remove_worker(worker)
        self.held.pop(worker, None)
        self._forget_placements(worker)

    @rule(worker=workers)
    def clear(self, worker: WorkerId) -> None:
        self.index.clear(worker)
        if worker in self.held:
            self.held[worker] = Counter()
        self._forget_placements(worker)

    @rule(worker=workers, node=nodes)
    def store_whole(self, worker: WorkerId, node: int) -> None:
        self.store(worker, node, 0)

    @rule(worker=workers, node=nodes, known=st.integers(0, 53))
    def store(self, worker: WorkerId, node: int, known: int) -> None:
        """A run that hangs on a parent, which may or may not be held by anybody."""
        chain = keys_of(path(node))
        start = min(known, len(chain) - 1)
        self.stored.append((worker, path(node)[start:]))
        self.index.store(worker, chain[start:], chain[start - 1] if start else None)
        if worker in self.held:
            self.held[worker].update(chain[start:])
            for key in chain[start:]:
                self.placed.pop((worker, key), None)

    @rule(worker=workers, node=nodes)
    def store_alone(self, worker: WorkerId, node: int) -> None:
        """As a snapshot may give it: nobody knows what comes before it."""
        [key] = keys_of([node])
        self.index.store(worker, [key], UNKNOWN)
        if worker in self.held:
            self.held[worker][key] += 1
            self.placed.pop((worker, key), None)

    @rule(worker=workers, node=nodes, count=st.integers(1, 20))
    def free(self, worker: WorkerId, node: int, count: int) -> None:
        """As an engine does: from the end of a prompt."""
        self.remove(worker, path(node)[::-1][:count])

    @precondition(lambda self: self.stored)
    @rule(which=st.integers(0, 99), whole=st.booleans())
    def free_stored(self, which: int, whole: bool) -> None:
        """What came goes again, or the first of it."""
        worker, came = self.stored.pop(-1 - which % len(self.stored))
        self.remove(worker, came[::-1] if whole else came[:1])

    @precondition(lambda self: self.decisions)
    @rule(which=st.integers(0, 99), start=st.integers(0, 53), count=st.integers(1, 5))
    def store_promised(self, which: int, start: int, count: int) -> None:
        """Of what was promised to a worker some blocks, from the beginning or not."""
        worker, keys, _placed_at = self.decisions[which % len(self.decisions)]
        start = min(start, len(keys) - 1)
        at = next(node for node in NODES if keys_of([node])[0] == keys[min(start + count, len(keys)) - 1])
        self.store(worker, at, start)

    @rule(worker=workers, gone=st.lists(nodes, max_size=6))
    def remove(self, worker: WorkerId, gone: list[int]) -> None:
        keys = keys_of(gone)
        self.index.remove(worker, keys)
        if worker in self.held:
            self.held[worker] = self.held[worker] - Counter()
            for key in keys:
                if self.held[worker][key] > 0:
                    self.held[worker][key] -= 1

    @rule(worker=workers, node=nodes)
    def place(self, worker: WorkerId, node: int) -> None:
        keys = keys_of(path(node))
        self.index.place(worker, keys, self.now)
        if worker in self.held:
            self.decisions.append((worker, keys, self.now))
        for key in keys:
            if worker in self.held and self.held[worker][key] <= 0:
                if self.placed.get((worker, key), 0.0) <= self.now:
                    self.claims[worker, key] = 0
                self.claims[worker, key] += 1
                self.placed[worker, key] = self.now + TTL

    @precondition(lambda self: self.decisions)
    @rule(which=st.integers(0, 99))
    def retract(self, which: int) -> None:
        worker, keys, placed_at = self.decisions.pop(which % len(self.decisions))
        self.index.retract(worker, keys, placed_at, self.now)
        if placed_at + TTL <= self.now:
            return
        for key in keys:
            if (worker, key) in self.placed:
                self.claims[worker, key] -= 1
                if not self.claims[worker, key]:
                    del self.placed[worker, key]

    @rule(worker=workers, node=nodes, delivered=st.integers(0, 40))
    def refute(self, worker: WorkerId, node: int, delivered: int) -> None:
        keys = keys_of(path(node))
        self.index.refute(worker, keys, delivered)
        for key in keys[delivered:]:
            if worker in self.held:
                del self.held[worker][key]
            self.placed.pop((worker, key), None)
        refuted = set(path(node)[delivered:])
        behind = keys_of([other for other in NODES if not refuted.isdisjoint(path(other))])
        if any((worker, key) in self.placed for key in behind):
            self.now += TTL  # what was promised behind that went with it, or not, if what it follows was held

    @rule(seconds=st.sampled_from([0.5, 3.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(node=nodes)
    def match(self, node: int) -> None:
        self._matches(keys_of(path(node)))

    @rule(worker=workers, node=nodes)
    def held_depth(self, worker: WorkerId, node: int) -> None:
        keys = keys_of(path(node))
        depth = 0
        while depth < len(keys) and self.held.get(worker, Counter())[keys[depth]] > 0:
            depth += 1
        assert self.index.held_depth(worker, keys) == depth

    @rule(steps=st.integers(1, 60))
    def inspect(self, steps: int) -> None:
        """One inspection after the other, with all that happens in between."""
        for _ in range(steps):
            if next(self.inspection, self) is self:
                self.inspection = self.index.inspect()

    @invariant()
    def agrees(self) -> None:
        self.index.check_integrity()
        for chain in range(2, 8):  # the end of every chain, and so all that come before it
            self._matches(keys_of(path(chain * CHAIN + CHAIN - 1)))
        for worker in WORKERS:
            counts = self.held.get(worker, Counter())
            expected = {key for key, count in counts.items() if count > 0}
            assert set(self.index.held(worker)) == expected
            for key in expected:
                assert self.index.copies(worker, key) == counts[key]

    def _matches(self, keys: list[BlockKey]) -> None:
        expected = {worker: self._depth(worker, keys) for worker in self.held}
        assert self.index.match(keys, self.now) == {w: depth for w, depth in expected.items() if depth}

    def _depth(self, worker: WorkerId, keys: list[BlockKey]) -> int:
        for depth, key in enumerate(keys):
            placed = self.placed.get((worker, key), 0.0) > self.now
            if self.held[worker][key] <= 0 and not placed:
                return depth
        return len(keys)

    def _forget_placements(self, worker: WorkerId) -> None:
        self.placed = {pair: until for pair, until in self.placed.items() if pair[0] != worker}
        self.decisions = [made for made in self.decisions if made[0] != worker]


IndexHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndexHistory = IndexHistory.TestCase
