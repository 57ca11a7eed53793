"""What routing keeps up to date beside the requests: rates and cache sizes in the loads, what the index
knows of a worker, outliers, and what must be forgotten when a worker leaves. Once a second on the way of a
decision, so that it needs no task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.fleet.bounds import LearnedBounds
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.rates import PrefillRates
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.prompt.base import PromptEncoder
from gateway.routing.feedback import Feedback
from gateway.types import WorkerId

INTERVAL_S = 1.0
ASSUMED_CAPACITY = 4096
"""Blocks of an engine that sends no events and does not say how many it has: 65,536 tokens of 16 a block."""


class IndexMembers(Protocol):
    """The part of an index that follows the fleet."""

    def add_worker(self, worker: WorkerId, *, stride: int = 1, capacity: int | None = None) -> None:
        """Also for one that is in: `stride` keys make one engine block. With a `capacity`, in keys, what the
        index holds for it is a guess from routing decisions; without, it comes from the engine's events."""
        ...

    def remove_worker(self, worker: WorkerId) -> None: ...


class Upkeep:
    """Also a listener of the fleet: the index knows a worker before its follower or any request does.

    `held` tells how many keys the index holds for each worker.
    """

    def __init__(
        self,
        registry: Registry,
        board: LoadBoard,
        guards: Guards,
        rates: PrefillRates,
        index: IndexMembers,
        feedback: Feedback,
        encoders: Callable[[str], PromptEncoder | None],
        held: Callable[[], Mapping[WorkerId, int]] | None = None,
        bounds: LearnedBounds | None = None,
        forget: Callable[[WorkerId], None] = lambda worker: None,
    ) -> None:
        """`forget` is told who has left, for whoever else keeps something of it."""
        self._registry = registry
        self._board = board
        self._guards = guards
        self._rates = rates
        self._index = index
        self._feedback = feedback
        self._encoders = encoders
        self._held = held
        self._bounds = bounds or LearnedBounds()
        self._forget = forget
        self.next_at = float("-inf")
        """When it is to be done again."""

    def do(self, now: float) -> None:
        self.next_at = now + INTERVAL_S
        workers = self._registry.workers()
        self._guards.sweep([worker.id for worker in workers], now)
        relative = self._rates.relative()
        held = self._held() if self._held is not None else {}
        for worker in workers:
            load = self._board.add(worker.id)
            # an operator's own figure stands above what was measured
            weight = worker.spec.weight
            load.prefill_rate = weight if weight != 1.0 else relative.get(worker.id, 1.0)
            stride = self._stride(worker)
            keys = self._feedback.last_blocks.without_ends(worker.id, held.get(worker.id, 0), stride)
            load.cached_blocks = keys // stride
            self._tell_index(worker)

    def added(self, worker: Worker) -> None:
        self.next_at = float("-inf")
        self._tell_index(worker)

    def changed(self, worker: Worker) -> None:
        self.next_at = float("-inf")
        self._tell_index(worker)

    def removed(self, worker: Worker) -> None:
        self._index.remove_worker(worker.id)
        self._rates.forget(worker.id)
        self._feedback.forget(worker.id)
        self._guards.forget(worker.id)
        self._bounds.forget(worker.id)
        self._forget(worker.id)

    def _tell_index(self, worker: Worker) -> None:
        info, stride = worker.info, self._stride(worker)
        if info is None:
            self._index.add_worker(worker.id)
            return
        encoder = self._encoders(info.model)
        # tokens that are not the engine's own can't meet the keys that its events give
        precise = worker.spec.events is not None and (encoder is None or encoder.exact)
        capacity = None if precise else (info.capacity_blocks or ASSUMED_CAPACITY) * stride
        self._index.add_worker(worker.id, stride=stride, capacity=capacity)

    def _stride(self, worker: Worker) -> int:
        """Keys in one of its engine's blocks."""
        if worker.info is None:
            return 1
        return worker.info.block_size // self._registry.unit_of(worker.info.model)
