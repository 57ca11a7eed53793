"""The prefix index: which worker holds which leading blocks of a prompt, exactly (design §5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from gateway.index.capacity import CapacityLru
from gateway.index.holding import Holding
from gateway.index.inspection import inspect_tree
from gateway.index.placements import DEFAULT_MAX_KEYS, DEFAULT_TTL, Placements
from gateway.index.tree import CHILD_BITS, BlockTree, holder_bits
from gateway.index.watch import Watch, Watches
from gateway.kv.parted import LOW
from gateway.types import BlockKey, WorkerId

DEFAULT_MAX_BLOCKS = 4_000_000
COLLECT_SLICE = 1024
"""Keys of removed or cleared workers that one call of the write path tidies up at most."""
COLLECT_AT_LEAVE = 64
"""So many of them when another one is removed or cleared: many may leave at once."""
COLLECT_PER_KEY = 4
"""So many of them for each key that is stored."""
STRETCH = 16
"""Keys of a prompt of which a match asks about the last alone, unless somebody's match ends among them."""


@dataclass(frozen=True, slots=True)
class IndexStats:
    blocks: int
    """Distinct blocks in memory, those being tidied up included."""
    held_pairs: int
    """(worker, block) pairs."""
    placed_pairs: int
    evictions: int
    """Blocks given up so far because of `max_blocks`."""
    retiring_pairs: int
    """Pairs of removed or cleared workers, no longer matched, whose memory is still to be returned."""
    held: Mapping[WorkerId, int]
    """Blocks held, by worker."""


class _Worker:
    __slots__ = ("epoch", "holding", "id", "lru", "stride", "watches")

    def __init__(self, worker: WorkerId, holding: Holding, epoch: int) -> None:
        self.id = worker
        self.epoch = epoch
        self.holding = holding
        self.stride = 1
        self.lru: CapacityLru | None = None
        self.watches = Watches()


class PrefixIndex:
    """An IndexReader and IndexWriter in memory; one thread, no I/O, nothing awaited.

    Every worker's epoch has a bit. To clear or remove a worker is to take its bit out of play, at once; its
    keys are tidied up in slices by later calls (`collect` does more of it), and only then is the bit used
    again. At most `max_blocks` blocks are kept; least recently used prefixes leave first, from their ends.
    """

    def __init__(
        self,
        *,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        placement_ttl: float = DEFAULT_TTL,
        max_placed_keys: int = DEFAULT_MAX_KEYS,
    ) -> None:
        self._max_blocks = max_blocks
        self._holdings: dict[int, Holding] = {}
        self._tree = BlockTree(self._holdings)
        self._placements = Placements(placement_ttl, max_placed_keys)
        self._workers: dict[WorkerId, _Worker] = {}
        self._by_bit: dict[int, _Worker] = {}
        self._active = 0
        self._retiring: deque[Holding] = deque()
        self._free_bits: list[int] = []
        self._new_bits = count(CHILD_BITS)
        self._epochs = count(1)
        self._evictions = 0

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._workers)} workers, {self._tree.size} blocks>"

    # the read path

    def match(self, keys: Sequence[BlockKey], now: float) -> dict[WorkerId, int]:
        if self._placements.masks:
            self._placements.expire(now)
        found: dict[WorkerId, int] = {}
        parts, holed, total = self._tree.nodes.parts, self._tree.holed, len(keys)
        # in a short prompt there is nothing to skip
        alive, depth = self._walk(found, keys, self._active, 0, total if total <= STRETCH else 1)
        width = STRETCH
        while alive and depth < total:
            # whoever has no holes and holds the last of a stretch holds all of it
            step, start = 1 if alive & holed else STRETCH, depth
            last: int | None = 0
            for key in keys[depth + step - 1 :: step]:
                value = parts[key & LOW].get(key)
                if value is not last:  # along a prompt most values are one shared int
                    if value is None or alive & value != alive:
                        break
                    last = value
                depth += step
            # where one ends after the other there is nothing to skip
            width = 2 * width if depth == start else STRETCH
            alive, depth = self._walk(found, keys, alive, depth, depth + width)
        if depth:
            if alive:
                self._settle(found, alive, depth)
            self._tree.touch(keys[depth - 1])
        return found

    def held_depth(self, worker: WorkerId, keys: Sequence[BlockKey]) -> int:
        known = self._workers.get(worker)
        if known is None:
            return 0
        depth = known.holding.depth(keys)
        return depth - depth % known.stride

    def holds(self, worker: WorkerId, key: BlockKey) -> bool:
        known = self._workers.get(worker)
        return known is not None and key in known.holding.parents

    def watch(self, worker: WorkerId, key: BlockKey) -> Watch | None:
        known = self._workers.get(worker)
        return known.watches.begin(key) if known is not None and known.lru is None else None

    def unwatch(self, worker: WorkerId, watch: Watch) -> None:
        known = self._workers.get(worker)
        if known is not None:
            known.watches.end(watch)

    # the write path

    def add_worker(self, worker: WorkerId, *, stride: int = 1, capacity: int | None = None) -> None:
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = _Worker(worker, self._new_holding(), next(self._epochs))
            self._enter(known)
        elif (capacity is None) != (known.lru is None):
            self.clear(worker)  # a guess must not pass for the engine's word, nor the reverse
        known.stride = stride
        if capacity is None:
            known.lru = None
        elif known.lru is None:
            known.lru = CapacityLru(capacity, known.holding)
        else:
            known.lru.capacity = capacity

    def remove_worker(self, worker: WorkerId) -> None:
        known = self._workers.pop(worker, None)
        if known is not None:
            self._retire(known)
            self.collect(COLLECT_AT_LEAVE)

    def store(self, worker: WorkerId, keys: Sequence[BlockKey], parent: BlockKey | None = None) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._come_true(known, keys, parent)
        self._tree.store(known.holding, keys, parent)
        if keys and known.lru is not None:
            known.lru.place(keys[-1])
        self._keep_within_bounds(len(keys))

    def load(
        self,
        worker: WorkerId,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        copies: Mapping[int, int],
    ) -> None:
        """Of a snapshot: as `store`, but of each key the worker has one copy now, or as many as `copies`
        says, and nothing is used by it: when it was, nobody knows any more."""
        known = self._workers.get(worker)
        if known is None:
            return
        self._come_true(known, keys, parent)
        self._tree.load(known.holding, keys, parent, copies)
        self._keep_within_bounds(len(keys))

    def remove(self, worker: WorkerId, keys: Sequence[BlockKey]) -> None:
        known = self._workers.get(worker)
        if known is not None:
            gone = self._tree.remove(known.holding, keys)
            if known.lru is not None:
                known.lru.gone(gone)
            elif known.watches:
                for key, _ in gone:
                    known.watches.gone(key)

    def replaced(self, worker: WorkerId, key: BlockKey) -> None:
        known = self._workers.get(worker)
        if known is not None:
            known.watches.gone(key)

    def clear(self, worker: WorkerId) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._retire(known)
        known.holding, known.epoch = self._new_holding(), next(self._epochs)
        known.watches = Watches()
        if known.lru is not None:
            known.lru = CapacityLru(known.lru.capacity, known.holding)
        self._enter(known)
        self.collect(COLLECT_AT_LEAVE)

    def place(self, worker: WorkerId, keys: Sequence[BlockKey], now: float) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        if known.lru is None:
            self._placements.expire(now)
            pieces = [list[int](keys[start:stop]) for start, stop in known.holding.missing(keys)]
            if pieces:
                self._placements.place(known.holding.bit, keys[-1], pieces, now)
        else:
            self._place_for_long(known, known.lru, keys)

    def retract(self, worker: WorkerId, keys: Sequence[BlockKey], placed_at: float, now: float) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        if known.lru is None:
            self._placements.retract(known.holding.bit, keys, placed_at, now)
        else:
            self._forget(known, known.lru.retract(keys))

    def epoch(self, worker: WorkerId) -> int:
        known = self._workers.get(worker)
        return 0 if known is None else known.epoch

    def refute(self, worker: WorkerId, keys: Sequence[BlockKey], delivered: int) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._placements.refute(known.holding.bit, keys, delivered)
        self._forget(known, keys[delivered:][::-1])

    def collect(self, limit: int = COLLECT_SLICE) -> int:
        """Tidies up at most `limit` keys of removed or cleared workers; returns how many are left to do."""
        while self._retiring and limit > 0:
            holding = self._retiring[0]
            limit -= self._tree.drain(holding, limit)
            if not holding.size:
                self._retiring.popleft()
                del self._holdings[holding.bit]
                self._free_bits.append(holding.bit)
        return sum(holding.size for holding in self._retiring)

    # what people and metrics ask

    def held(self, worker: WorkerId) -> Iterator[BlockKey]:
        """The keys that this worker holds by its own word (or, without events, by our guess)."""
        known = self._workers.get(worker)
        return map(BlockKey, known.holding.parents) if known is not None else iter(())

    def count(self, worker: WorkerId) -> int:
        """How many keys that are."""
        known = self._workers.get(worker)
        return 0 if known is None else known.holding.size

    def copies(self, worker: WorkerId, key: BlockKey) -> int:
        known = self._workers.get(worker)
        if known is None or key not in known.holding.parents:
            return 0
        return known.holding.copies.get(key, 1)

    def parent(self, worker: WorkerId, key: BlockKey) -> BlockKey | None:
        """The key before `key`, where this worker holds it and the index was told."""
        known = self._workers.get(worker)
        parent = known.holding.parents.get(key) if known is not None else None
        return None if parent is None else BlockKey(parent)

    def stats(self) -> IndexStats:
        held = {worker: known.holding.size for worker, known in self._workers.items()}
        return IndexStats(
            blocks=self._tree.size - len(self._tree.ghosts),
            held_pairs=sum(held.values()),
            placed_pairs=len(self._placements),
            evictions=self._evictions,
            retiring_pairs=sum(holding.size for holding in self._retiring),
            held=held,
        )

    def check_integrity(self) -> None:
        """Recomputes everything from scratch. Raises AssertionError where it differs."""
        for _ in self.inspect():
            pass

    def inspect(self) -> Generator[None]:
        """The same in short steps, between which the index may be read and written. To be closed where they
        are not gone through."""
        yield from inspect_tree(self._tree, self._holdings, lambda: self._active)
        yield from self._placements.inspect()
        for known in list(self._workers.values()):
            yield
            if known.lru is not None:
                known.lru.check_integrity()
        yield
        bits = {known.holding.bit for known in self._workers.values()}
        retiring = {holding.bit for holding in self._retiring}
        ok = (
            self._by_bit.keys() == bits
            and self._holdings.keys() == bits | retiring
            and not (bits | retiring) & set(self._free_bits)
            and self._active == sum(bits)
            and self._tree.holed & self._active
            == sum(known.holding.bit for known in self._workers.values() if known.holding.holes)
            and self._tree.size <= self._max_blocks
        )
        if not ok:
            raise AssertionError("bits of workers are mixed up")

    # steps

    def _come_true(self, known: _Worker, keys: Sequence[BlockKey], parent: BlockKey | None) -> None:
        """It holds what was promised of these."""
        if self._placements.masks:
            if parent is None or parent in known.holding.parents:
                self._placements.came_true(known.holding.bit, keys)
            else:  # they may be in the middle of a promise
                self._placements.drop(known.holding.bit, keys)

    def _walk(
        self, found: dict[WorkerId, int], keys: Sequence[BlockKey], alive: int, depth: int, stop: int
    ) -> tuple[int, int]:
        """One key after the other, up to `stop`: who is left of those `alive`, and how deep."""
        placed, by_bit, parts = self._placements.masks, self._by_bit.get, self._tree.nodes.parts
        last: int | None = 0
        for key in keys[depth:stop]:
            value = parts[key & LOW].get(key)
            if value is not last:
                still = 0 if value is None else alive & value
                if still != alive:
                    gone = alive ^ still
                    promised = gone & placed.get(key, 0) if placed else 0
                    if promised:
                        self._reach(found, keys, promised, depth)
                        gone ^= promised
                    if depth and gone:
                        known = by_bit(gone)
                        if known is None:
                            self._settle(found, gone, depth)
                        elif whole := depth - depth % known.stride:  # mostly one at a time
                            found[known.id] = whole
                    alive = still
                    if not alive:
                        break
                last = value
            depth += 1
        return alive, depth

    def _reach(self, found: dict[WorkerId, int], keys: Sequence[BlockKey], mask: int, depth: int) -> None:
        """The match of these workers goes on from `depth`, where promises begin."""
        for bit in holder_bits(mask):
            held, deep, before = self._holdings[bit], depth, -1
            while before < deep < len(keys):
                before, deep = deep, self._placements.reach(bit, keys, deep)
                while held.holes and deep < len(keys) and keys[deep] in held.parents:
                    deep += 1
            self._settle(found, bit, deep)

    def _settle(self, found: dict[WorkerId, int], mask: int, depth: int) -> None:
        """The match of these workers ends at `depth`."""
        by_bit = self._by_bit
        for bit in (mask,) if mask in by_bit else holder_bits(mask):
            known = by_bit[bit]
            whole = depth - depth % known.stride
            if whole:
                found[known.id] = whole

    def _place_for_long(self, known: _Worker, lru: CapacityLru, keys: Sequence[BlockKey]) -> None:
        if len(keys) > lru.capacity:
            keys = keys[: lru.capacity]  # of more it could not keep the rest
        for start, stop in known.holding.missing(keys):
            self._tree.store(known.holding, keys[start:stop], keys[start - 1] if start else None)
        if keys:
            lru.place(keys[-1])
        while gone := lru.next_out():
            self._tree.lost(known.holding, gone)
            lru.gone(gone)
        self._keep_within_bounds(len(keys))

    def _forget(self, known: _Worker, keys: Sequence[int]) -> None:
        gone = self._tree.forget(known.holding, keys)
        if known.lru is not None:
            known.lru.gone(gone)

    def _keep_within_bounds(self, stored: int) -> None:
        tree = self._tree
        if self._retiring:  # faster than it can fill up again, and no call pays for many
            self.collect(min(COLLECT_SLICE, COLLECT_PER_KEY * stored))
        while tree.size > self._max_blocks:
            key, parent, holders = tree.give_up()
            self._evictions += 1
            for bit in holder_bits(holders):
                known = self._by_bit.get(bit)
                if known is not None and known.lru is not None:
                    known.lru.gone(((key, parent),))

    def _new_holding(self) -> Holding:
        bit = self._free_bits.pop() if self._free_bits else 1 << next(self._new_bits)
        holding = self._holdings[bit] = Holding(bit)
        return holding

    def _enter(self, known: _Worker) -> None:
        self._by_bit[known.holding.bit] = known
        self._active |= known.holding.bit

    def _retire(self, known: _Worker) -> None:
        bit = known.holding.bit
        del self._by_bit[bit]
        self._active ^= bit
        self._placements.clear(bit)
        self._retiring.append(known.holding)
