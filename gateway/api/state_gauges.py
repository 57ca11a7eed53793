"""Gauges of what this replica is doing: states, bounds, queue, followers; read when Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.api.fleet_view import FleetView, WorkerView
from gateway.events.follower import FollowerState
from gateway.fleet.breaker import BreakerState
from gateway.fleet.guards import Guards
from gateway.fleet.worker import WorkerState
from gateway.metrics import Gauge
from gateway.types import Clock, WorkerId

LABELS = ("model", "worker")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is configured, so that a gauge can be read as a share of it."""

    index_blocks: int
    queue_requests: int
    """Waiting requests a model."""


class StateGauges:
    def __init__(
        self,
        view: FleetView,
        guards: Guards,
        bounds: Bounds,
        *,
        version: str,
        readiness: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        self._view = view
        self._guards = guards
        self._bounds = bounds
        self._version = version
        self._readiness = readiness
        self._clock = clock

    def __call__(self) -> Iterable[Gauge]:
        workers = self._view.workers()
        # a worker may leave between two gauges, and to ask for its breaker then would bring it back
        open_breakers = [(_of(w), float(self._breaker_open(w))) for w in workers]
        yield Gauge("gateway_build_info", "1, with the version.", ("version",), [((self._version,), 1)])
        yield Gauge(
            "gateway_ready",
            "1 where this replica may get traffic.",
            (),
            [((), float(self._readiness() is None))],
        )
        yield Gauge(
            "gateway_worker_state",
            "1 for the state that the worker is in, 0 for the others.",
            (*LABELS, "state"),
            [((*_of(w), s.value), float(w.state == s.value)) for w in workers for s in WorkerState],
        )
        yield Gauge(
            "gateway_breaker_open",
            "1 while its circuit breaker is open or probes with single requests.",
            LABELS,
            open_breakers,
        )
        yield Gauge(
            "gateway_inflight_limit",
            "Requests that it may have in flight; absent where nothing bounds them.",
            LABELS,
            [(_of(w), w.load.max_requests) for w in workers if w.load.max_requests is not None],
        )
        yield Gauge(
            "gateway_events_following",
            "1 where its KV events are heard or mirrored; absent where it publishes none.",
            LABELS,
            [
                (
                    _of(w),
                    float(w.events.state in (FollowerState.FOLLOWING.value, FollowerState.MIRRORING.value)),
                )
                for w in workers
                if w.events is not None
            ],
        )
        yield Gauge(
            "gateway_event_orphan_blocks",
            "Stored blocks whose parent has not turned up.",
            LABELS,
            [(_of(w), w.events.waiting_blocks) for w in workers if w.events is not None],
        )
        yield Gauge(
            "gateway_index_limit_blocks",
            "Distinct blocks the index may hold.",
            (),
            [((), self._bounds.index_blocks)],
        )
        yield Gauge(
            "gateway_queue_limit_requests",
            "Requests of one model that may wait for a place.",
            (),
            [((), self._bounds.queue_requests)],
        )

    def _breaker_open(self, worker: WorkerView) -> bool:
        breaker = self._guards.of(WorkerId(worker.id)).breaker
        return breaker.state(self._clock()) is not BreakerState.CLOSED


def _of(worker: WorkerView) -> tuple[str, str]:
    return worker.model or "", worker.id
