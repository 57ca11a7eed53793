"""What routing keeps up to date beside the requests: rates and cache sizes in the loads, outliers, and what
must be forgotten when a worker leaves. Once a second on the way of a decision, so that it needs no task."""

from __future__ import annotations

from collections.abc import Callable

from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.rates import PrefillRates
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.index.base import IndexWriter
from gateway.routing.feedback import Feedback
from gateway.types import WorkerId

INTERVAL_S = 1.0


class Upkeep:
    """Also a listener of the fleet: the index knows a worker before its follower or any request does.

    `cached_keys` tells how many keys the index holds for a worker.
    """

    def __init__(
        self,
        registry: Registry,
        board: LoadBoard,
        guards: Guards,
        rates: PrefillRates,
        index: IndexWriter,
        feedback: Feedback,
        cached_keys: Callable[[WorkerId], int] | None = None,
    ) -> None:
        self._registry = registry
        self._board = board
        self._guards = guards
        self._rates = rates
        self._index = index
        self._feedback = feedback
        self._cached_keys = cached_keys
        self._next = float("-inf")

    def due(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        workers = self._registry.workers()
        self._guards.sweep([worker.id for worker in workers], now)
        relative = self._rates.relative()
        for worker in workers:
            load = self._board.get(worker.id)
            if load is None:
                continue
            # an operator's own figure stands above what was measured
            weight = worker.spec.weight
            speed = weight if weight != 1.0 else relative.get(worker.id, 1.0)
            load.prefill_rate = speed * self._guards.slow_start(worker.id, now)
            if self._cached_keys is not None and worker.info is not None:
                unit = self._registry.unit_of(worker.info.model)
                load.cached_blocks = self._cached_keys(worker.id) * unit // worker.info.block_size

    def added(self, worker: Worker) -> None:
        self._next = float("-inf")
        self._index.add_worker(worker.id)

    def changed(self, worker: Worker) -> None:
        self._next = float("-inf")

    def removed(self, worker: Worker) -> None:
        self._index.remove_worker(worker.id)
        self._rates.forget(worker.id)
        self._feedback.forget(worker.id)
        self._guards.forget(worker.id)
