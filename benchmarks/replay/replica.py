"""One gateway replica of a replay: the product's index, loads, policy and feedback, together as the router
does it, with the step order of `gateway.routing.router` (match → score → pick → lease → placement)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from gateway.fleet.load import Lease, LoadBoard, LoadVector, WorkerLoad
from gateway.fleet.rates import PrefillRates, attended_pairs
from gateway.index.changes import Change, apply_changes
from gateway.index.prefix import PrefixIndex
from gateway.routing.choose import pick
from gateway.routing.feedback import Feedback
from gateway.routing.in_time import expected, first_in_time
from gateway.routing.last_blocks import LastBlocks
from gateway.routing.observer import NullObserver
from gateway.routing.policy import Committing, Policy, RequestShape
from gateway.routing.route import Notes, Route
from gateway.routing.slicing import NO_SLICING, Plan, Slicing, plan
from gateway.types import BlockKey, Usage, WorkerId

UPKEEP_S = 1.0
"""How often rates and cache sizes enter the loads, as in the router's upkeep."""


@dataclass(slots=True)
class Decision:
    worker: int
    route: Route
    replica: Replica
    slices: Plan | None = None
    timed: bool = True
    """The time to its first token says something of its worker's speed."""

    def first_token(self, seconds: float, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine's first token came `seconds` after the request."""
        self.route.lease.first_byte()
        timed = self.timed and self.slices is None
        self.replica.learn(self.route, seconds if timed else None, prompt_tokens, cached_tokens)

    def finished(self) -> None:
        self.route.lease.release()


class Replica:
    """`capacity` gives each worker's cache in blocks. With `blind` the replica hears no engine events: it
    knows only what it decided itself, bounded by each engine's capacity."""

    def __init__(
        self,
        name: str,
        capacity: Sequence[int],
        policy: Policy,
        random: Random,
        block_size: int,
        *,
        blind: bool = False,
        max_blocks: int = 8_000_000,
        max_ttft: float = 0.0,
        slicing: Slicing = NO_SLICING,
    ) -> None:
        self.name = name
        self.workers = [WorkerId(f"worker-{number:03}") for number in range(len(capacity))]
        self.blind = blind
        self._max_ttft = max_ttft
        self._slicing = slicing
        self._policy = policy
        self._chosen = policy.chosen if isinstance(policy, Committing) else None
        self._random = random
        self._block_size = block_size
        self._index = PrefixIndex(max_blocks=max_blocks, max_placed_keys=max_blocks)
        self._board = LoadBoard()
        self._rates = PrefillRates()
        self._feedback = Feedback(self._index, NullObserver(), LastBlocks(self._index))
        self._next_upkeep = 0.0
        self._loads: list[WorkerLoad] = []
        for worker, blocks in zip(self.workers, capacity, strict=True):
            self._index.add_worker(worker, capacity=blocks if blind else None)
            load = self._board.add(worker)
            load.capacity_blocks = blocks
            load.capacity_tokens = blocks * block_size
            self._loads.append(load)

    def decide(
        self,
        now: float,
        prompt_tokens: int,
        cacheable: Sequence[BlockKey],
        full: Sequence[BlockKey],
        max_tokens: int,
        session: str,
    ) -> Decision | None:
        """None where it is refused: nobody is expected to answer it in time."""
        self._upkeep(now)
        size, loads = self._block_size, self._loads
        shape = RequestShape(prompt_tokens, cacheable, max_tokens, session, size)
        matches = self._index.match(cacheable, now) if cacheable else {}
        matched = [matches.get(worker, 0) * size for worker in self.workers]
        scores = self._policy.score(shape, loads, matched)
        best: int | None = pick(scores, loads, matched, self._random)
        if self._max_ttft and best is not None:
            times = [
                expected(load, prompt_tokens - held, self._rates)
                for load, held in zip(loads, matched, strict=True)
            ]
            best = first_in_time(scores, times, best, self._max_ttft)
        if best is None:
            return None
        winner = best
        if self._chosen is not None:
            self._chosen(shape, loads, matched, winner)
        worker, load = self.workers[winner], loads[winner]
        notes = Notes(
            ahead_tokens=load.all_waiting_tokens,
            unit=size,
            epoch=self._index.epoch(worker),
            held_blocks=self._index.held_depth(worker, cacheable[: matched[winner] // size]),
        )
        slices = self._plan(prompt_tokens, matched[winner], load) if self._slicing.after_s else None
        lease = Lease.take(
            load,
            prompt_tokens=prompt_tokens,
            matched_tokens=matched[winner],
            keys=cacheable,
            block_size=size,
            yielding_tokens=0 if slices is None else slices.yields_tokens,
        )
        self._index.place(worker, full, now)
        route = Route(
            worker=worker,
            url="",
            model="",
            lease=lease,
            prompt_tokens=prompt_tokens,
            matched_tokens=matched[winner],
            reusable_tokens=max(matched),
            keys=[cacheable],
            reason="",
            notes=notes,
        )
        return Decision(winner, route, self, slices)

    def _plan(self, prompt_tokens: int, matched: int, load: WorkerLoad) -> Plan | None:
        pairs = attended_pairs(prompt_tokens, matched)
        return plan(
            self._slicing,
            prompt_tokens=prompt_tokens,
            matched_tokens=matched,
            seconds=self._rates.seconds(load.worker, prompt_tokens - matched, pairs),
            block=self._block_size,
            load=load,
            loads=self._loads,
        )

    def learn(self, route: Route, seconds: float | None, prompt_tokens: int, cached_tokens: int) -> None:
        """`seconds` is None where they say nothing of the worker's speed."""
        self._feedback.judge(route, Usage(prompt_tokens, 1, cached_tokens))
        if seconds is None:
            return
        uncached = prompt_tokens - cached_tokens
        pairs = attended_pairs(prompt_tokens, cached_tokens)
        self._rates.observe(route.worker, route.notes.ahead_tokens + uncached, seconds, pairs)

    def hear(self, worker: int, changes: Sequence[Change]) -> None:
        """What a worker's engine did to its cache."""
        if not self.blind:
            apply_changes(self._index, self.workers[worker], changes)

    # between replicas

    def placed_by_peer(self, worker: int, keys: Sequence[BlockKey], now: float) -> None:
        """`keys` are what its prompt adds to what matched there."""
        self._index.place(self.workers[worker], keys, now)

    def vector(self) -> dict[WorkerId, LoadVector]:
        return self._board.own_vector()

    def peer_loads(self, replica: str, vector: Mapping[WorkerId, LoadVector]) -> None:
        self._board.set_peer_loads(replica, vector)

    def some_peer_loads(self, replica: str, vector: Mapping[WorkerId, LoadVector]) -> None:
        self._board.update_peer_loads(replica, vector)

    def _upkeep(self, now: float) -> None:
        if now < self._next_upkeep:
            return
        self._next_upkeep = now + UPKEEP_S
        relative = self._rates.relative()
        held = self._index.stats().held
        for worker, load in zip(self.workers, self._loads, strict=True):
            load.prefill_rate = relative.get(worker, 1.0)
            load.cached_blocks = held[worker]
