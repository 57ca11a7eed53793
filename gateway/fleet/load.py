"""What each worker carries right now, and the lease that makes sure no count ever leaks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gateway.fleet.worker import Worker
from gateway.types import BlockKey, WorkerId

_MOST_TOGETHER = 64
MARK_TOKENS = 256
"""How far apart two looks at a context are: what two prompts have in common is known to so many tokens."""


@dataclass(slots=True, eq=False)
class WorkerLoad:
    """Live load of one worker, in requests and tokens. Policies read it; only leases change it.

    The `peer_*` figures are what other replicas have sent there.
    """

    worker: WorkerId
    requests: int = 0
    """Leases held by this replica: reserved and not yet released."""
    waiting_tokens: int = 0
    """Uncached prompt tokens of requests that have not answered their first byte; of those that are sent in
    slices, one slice."""
    yielding_tokens: int = 0
    """The rest of these: who comes later may pass them (gateway.routing.slicing)."""
    decoding_tokens: int = 0
    """Context tokens of requests that are decoding: what their attention reads."""
    context_tokens: int = 0
    """Prompt tokens of all requests in flight, cached ones too, what several have in common once: the K/V
    that they keep from being evicted."""
    marks: dict[BlockKey, int] = field(default_factory=dict, repr=False)
    """Every 256 tokens of those prompts the key there, with how many of them have it."""
    peer_requests: int = 0
    peer_waiting_tokens: int = 0
    peer_yielding_tokens: int = 0
    peer_decoding_tokens: int = 0
    peer_context_tokens: int = 0
    max_requests: int | None = None
    """In-flight bound, as configured; a worker at it is not a candidate."""
    learned_max: int | None = None
    """The same, learned from its refusals (gateway.fleet.bounds)."""
    prefill_rate: float = 1.0
    """Relative prefill speed: 1.0 is the fleet's own measure, 2.0 prefills twice as fast."""
    cached_blocks: int = 0
    """Blocks the index knows there; for choosing where a stranger's prompt hurts least."""
    capacity_blocks: int = 0
    """Blocks the engine has in all, of its own size; 0 where it is not known."""
    capacity_tokens: int = 0
    """The same in tokens."""

    @property
    def all_requests(self) -> int:
        return self.requests + self.peer_requests

    @property
    def all_waiting_tokens(self) -> int:
        return self.waiting_tokens + self.peer_waiting_tokens

    @property
    def all_yielding_tokens(self) -> int:
        return self.yielding_tokens + self.peer_yielding_tokens

    @property
    def all_decoding_tokens(self) -> int:
        return self.decoding_tokens + self.peer_decoding_tokens

    @property
    def all_context_tokens(self) -> int:
        return self.context_tokens + self.peer_context_tokens

    def common_context(self, keys: Sequence[BlockKey], block_size: int) -> int:
        """How many leading tokens of a prompt are in use there already, in steps of 256."""
        common = 0
        for mark in _marks(keys, block_size):
            if mark not in self.marks:
                break
            common += _mark_tokens(block_size)
        return common

    @property
    def occupancy(self) -> float:
        """Share of its cache that holds something, 0…1; 0 where its capacity is not known."""
        return min(1.0, self.cached_blocks / self.capacity_blocks) if self.capacity_blocks else 0.0

    @property
    def bound(self) -> int | None:
        """The bound that holds: the smaller of the two; None where there is none."""
        if self.learned_max is None:
            return self.max_requests
        return self.learned_max if self.max_requests is None else min(self.max_requests, self.learned_max)

    @property
    def full(self) -> bool:
        bound = self.bound
        return bound is not None and self.all_requests >= bound


class Lease(msgspec.Struct, eq=False):
    """A reserved place on one worker. Taken in the same step as the choice, so that nobody chooses on a load
    that is already stale; `release` may be called from every exit, and counts once."""

    load: WorkerLoad
    uncached_tokens: int
    """Those that count as waiting."""
    context_tokens: int
    on_release: Callable[[], None] | None = None
    """Called once, after the place is free again: whoever queues for one wakes up."""
    marks: Sequence[BlockKey] = ()
    mark_tokens: int = 0
    yielding_tokens: int = 0
    """Of its uncached tokens, those that nobody waits for."""
    on_first_byte: Callable[[], None] | None = None
    """Called once, when the first piece of the answer has come."""
    answered: bool = False
    """A first piece of the answer came. To be read only."""
    released: bool = False
    """To be read only."""

    @classmethod
    def take(
        cls,
        load: WorkerLoad,
        *,
        prompt_tokens: int,
        matched_tokens: int,
        keys: Sequence[BlockKey] = (),
        block_size: int = 16,
        yielding_tokens: int = 0,
        on_release: Callable[[], None] | None = None,
    ) -> Lease:
        """With `yielding_tokens`, so many of the uncached ones do not count as waiting."""
        uncached = max(0, prompt_tokens - matched_tokens) - yielding_tokens
        load.requests += 1
        load.waiting_tokens += uncached
        load.context_tokens += prompt_tokens
        step = max(1, MARK_TOKENS // block_size)
        lease = cls(load, uncached, prompt_tokens, on_release, keys[step - 1 :: step], step * block_size)
        if lease.marks:
            lease._hold_marks()
        if yielding_tokens:
            lease.yielding_tokens = yielding_tokens
            load.yielding_tokens += yielding_tokens
        return lease

    @property
    def worker(self) -> WorkerId:
        return self.load.worker

    def first_byte(self) -> None:
        """Prefill is over: the prompt stops waiting and starts to weigh on decode."""
        if self.answered or self.released:
            return
        self.answered = True
        self.load.waiting_tokens -= self.uncached_tokens
        if self.yielding_tokens:
            self.load.yielding_tokens -= self.yielding_tokens
        self.load.decoding_tokens += self.context_tokens
        if self.on_first_byte is not None:
            self.on_first_byte()

    def yield_no_more(self, tokens: int) -> int:
        """What is left of its prompt, so many tokens, goes in one piece: all of it waits. Returns how many
        more that are than before."""
        if self.answered or self.released:
            return 0
        more = tokens - self.uncached_tokens
        self.load.waiting_tokens += more
        self.load.yielding_tokens -= self.yielding_tokens
        self.uncached_tokens, self.yielding_tokens = tokens, 0
        return more

    def release(self) -> None:
        if self.released:
            return
        self.released = True
        load = self.load
        load.requests -= 1
        load.context_tokens -= self.context_tokens
        if self.marks:
            self._let_marks_go()
        if self.answered:
            load.decoding_tokens -= self.context_tokens
        else:
            load.waiting_tokens -= self.uncached_tokens
            load.yielding_tokens -= self.yielding_tokens
        if self.on_release is not None:
            self.on_release()

    def _hold_marks(self) -> None:
        """What others in flight there have in common with it counts once."""
        load, known = self.load, self.load.marks
        for mark in self.marks:
            users = known.get(mark, 0)
            known[mark] = users + 1
            if users:
                load.context_tokens -= self.mark_tokens

    def _let_marks_go(self) -> None:
        load, known = self.load, self.load.marks
        for mark in self.marks:
            users = known.pop(mark) - 1
            if users:
                known[mark] = users
                load.context_tokens += self.mark_tokens


class LoadVector(NamedTuple):
    """What one replica has in flight on one worker: state, not a count of changes, so that the last word of
    a replica is always right and a silent one can be dropped with all it held."""

    requests: int = 0
    waiting_tokens: int = 0
    decoding_tokens: int = 0
    context_tokens: int = 0
    yielding_tokens: int = 0


class LoadBoard:
    """The live load of every worker: this replica's own leases, and what its peers say they have there."""

    def __init__(self) -> None:
        self._loads: dict[WorkerId, WorkerLoad] = {}
        self._left: dict[WorkerId, WorkerLoad] = {}
        """Of removed workers that still serve something."""
        self._peers: dict[str, Mapping[WorkerId, LoadVector]] = {}
        self._together: dict[int, tuple[Sequence[Worker], list[WorkerLoad]]] = {}
        """By whose identity, some workers and their loads, as they were asked for."""

    def add(self, worker: WorkerId) -> WorkerLoad:
        """The worker's load. One that comes back under its old name finds the leases it still has."""
        load = self._loads.get(worker)
        if load is None:
            load = self._left.pop(worker) if worker in self._left else WorkerLoad(worker)
            self._loads[worker] = load
            self._together.clear()
            self._sum_peers(load)
        return load

    def of(self, workers: tuple[Worker, ...]) -> list[WorkerLoad]:
        """The loads of all of them, in order; the same list for the same tuple, so not to be changed."""
        known = self._together.get(id(workers))
        if known is not None and known[0] is workers:
            return known[1]
        loads = [self.add(worker.id) for worker in workers]
        if len(self._together) > _MOST_TOGETHER:
            self._together.clear()
        self._together[id(workers)] = workers, loads
        return loads

    def remove(self, worker: WorkerId) -> None:
        """Leases that are still out keep their load and release it in peace."""
        load = self._loads.pop(worker, None)
        if load is not None:
            self._together.clear()
            self._left[worker] = load
        self._left = {w: left for w, left in self._left.items() if left.requests}

    def get(self, worker: WorkerId) -> WorkerLoad | None:
        return self._loads.get(worker)

    def still_serves(self, worker: WorkerId) -> bool:
        """A removed one has requests of this replica."""
        left = self._left.get(worker)
        return left is not None and left.requests > 0

    def __iter__(self) -> Iterator[WorkerLoad]:
        return iter(self._loads.values())

    def own_vector(self) -> dict[WorkerId, LoadVector]:
        """What this replica tells its peers; workers with nothing in flight are left out."""
        return {
            load.worker: LoadVector(
                load.requests,
                load.waiting_tokens,
                load.decoding_tokens,
                load.context_tokens,
                load.yielding_tokens,
            )
            for load in self._loads.values()
            if load.requests
        }

    def set_peer_loads(self, replica: str, vector: Mapping[WorkerId, LoadVector]) -> None:
        """A peer's whole vector: what it said before no longer counts."""
        before = self._peers.get(replica, {})
        self._peers[replica] = dict(vector)
        self._sum_again(before.keys() | vector.keys())

    def update_peer_loads(self, replica: str, vector: Mapping[WorkerId, LoadVector]) -> None:
        """A peer's word about some workers; of the others stands what it said before."""
        self._peers[replica] = {**self._peers.get(replica, {}), **vector}
        self._sum_again(vector.keys())

    def drop_peer(self, replica: str) -> None:
        """The replica fell silent: what it held is gone with it."""
        self._sum_again(self._peers.pop(replica, {}).keys())

    def _sum_again(self, workers: Collection[WorkerId]) -> None:
        for worker in workers:
            load = self._loads.get(worker)
            if load is not None:
                self._sum_peers(load)

    def _sum_peers(self, load: WorkerLoad) -> None:
        vectors = [vector[load.worker] for vector in self._peers.values() if load.worker in vector]
        load.peer_requests = sum(v.requests for v in vectors)
        load.peer_waiting_tokens = sum(v.waiting_tokens for v in vectors)
        load.peer_decoding_tokens = sum(v.decoding_tokens for v in vectors)
        load.peer_context_tokens = sum(v.context_tokens for v in vectors)
        load.peer_yielding_tokens = sum(v.yielding_tokens for v in vectors)


def _marks(keys: Sequence[BlockKey], block_size: int) -> Sequence[BlockKey]:
    step = _mark_tokens(block_size) // block_size
    return keys[step - 1 :: step]


def _mark_tokens(block_size: int) -> int:
    return max(1, MARK_TOKENS // block_size) * block_size
