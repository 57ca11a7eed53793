"""What a person or a scraper may see of the fleet: one reading of live objects, for JSON and for gauges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway.events.followers import EventStatus
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker, WorkerState
from gateway.index.prefix import IndexStats, PrefixIndex
from gateway.metrics import Gauge
from gateway.routing.admission import Admission
from gateway.routing.encoders import EncoderBook
from gateway.routing.feedback import Feedback
from gateway.types import Clock, WorkerId

EventsOf = Callable[[WorkerId], EventStatus | None]
"""How the events of a worker are; None where it publishes none."""


@dataclass(frozen=True, slots=True)
class LoadView:
    requests: int
    waiting_tokens: int
    decoding_tokens: int
    peer_requests: int
    max_requests: int | None
    prefill_rate: float


@dataclass(frozen=True, slots=True)
class PromiseView:
    """Promised against delivered, in tokens."""

    promises: int
    promised_tokens: int
    short_tokens: int
    extra_tokens: int
    drift: float
    degraded: bool


@dataclass(frozen=True, slots=True)
class WorkerView:
    id: str
    url: str
    state: str
    reason: str
    since_s: float
    refusal: str | None
    """Why it gets no requests just now, though it is ready: breaker, ejection."""
    weight: float
    """Its speed against the others'; 1 leaves it to what is measured."""
    model: str | None
    adapters: tuple[str, ...]
    version: str
    block_size: int | None
    capacity_blocks: int
    indexed_blocks: int
    load: LoadView
    promise: PromiseView
    events: EventStatus | None
    """None where it publishes none: then what the index holds for it is a guess from routing decisions."""


class FleetView:
    def __init__(
        self,
        registry: Registry,
        board: LoadBoard,
        guards: Guards,
        index: PrefixIndex,
        feedback: Feedback,
        encoders: EncoderBook,
        admission: Admission,
        events: EventsOf,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._board = board
        self._guards = guards
        self._index = index
        self._feedback = feedback
        self._encoders = encoders
        self._admission = admission
        self._events = events
        self._clock = clock

    def workers(self) -> list[WorkerView]:
        held = self._index.stats().held
        return [self._worker(w, held.get(w.id, 0)) for w in self._registry.workers()]

    def models(self) -> list[dict[str, Any]]:
        states = self._encoders.states()
        rows: list[dict[str, Any]] = []
        for name in self._registry.names():
            target = self._registry.resolve(name)
            if target is None:
                continue
            tokenizer = states.get(target.model)
            rows.append(
                {
                    "name": name,
                    "sent_as": target.name,
                    "model": target.model,
                    "adapter": target.adapter,
                    "block_size": target.unit,
                    "tokenizer": None if tokenizer is None else tokenizer.source,
                    "tokenizer_reason": None if tokenizer is None else tokenizer.reason,
                    "workers": [w.id for w in target.workers],
                }
            )
        return rows

    def index(self) -> IndexStats:
        return self._index.stats()

    def queued(self) -> dict[str, int]:
        """Requests that wait for a place, by model."""
        return self._admission.depths()

    def gauges(self) -> Iterable[Gauge]:
        """Gauges read at scrape time: a removed worker leaves no stale series."""
        workers = self.workers()
        stats = self._index.stats()
        labels = ("model", "worker")

        def per_worker(name: str, text: str, value: Callable[[WorkerView], float]) -> Gauge:
            return Gauge(name, text, labels, [((w.model or "", w.id), value(w)) for w in workers])

        yield per_worker(
            "gateway_inflight_requests", "Requests this replica has there.", lambda w: w.load.requests
        )
        yield per_worker(
            "gateway_peer_inflight_requests",
            "Requests other replicas have there.",
            lambda w: w.load.peer_requests,
        )
        yield per_worker(
            "gateway_waiting_tokens",
            "Uncached prompt tokens that wait for their first byte.",
            lambda w: w.load.waiting_tokens,
        )
        yield per_worker(
            "gateway_decoding_tokens",
            "Context tokens of requests that decode.",
            lambda w: w.load.decoding_tokens,
        )
        yield per_worker(
            "gateway_prefill_rate", "Prefill speed against the fleet's median.", lambda w: w.load.prefill_rate
        )
        yield per_worker(
            "gateway_worker_ready",
            "1 where it may get requests: ready, breaker closed, not ejected.",
            lambda w: float(w.state == WorkerState.READY.value and w.refusal is None),
        )
        yield per_worker(
            "gateway_worker_degraded",
            "1 where what its events said it holds has stopped coming true.",
            lambda w: float(w.promise.degraded),
        )
        yield per_worker(
            "gateway_promise_drift_ratio",
            "Decayed mean of the share of promised tokens that was not delivered.",
            lambda w: w.promise.drift,
        )
        yield per_worker("gateway_index_blocks", "Blocks the index holds for it.", lambda w: w.indexed_blocks)
        yield per_worker("gateway_capacity_blocks", "Blocks its engine has.", lambda w: w.capacity_blocks)
        yield per_worker(
            "gateway_events_silent",
            "1 where requests flow and its engine has stopped saying anything.",
            lambda w: float(w.events is not None and w.events.silent),
        )
        yield Gauge(
            "gateway_index_distinct_blocks", "Distinct blocks in the index.", (), [((), stats.blocks)]
        )
        yield Gauge(
            "gateway_index_evicted_blocks",
            "Blocks given up at the cap.",
            (),
            [((), stats.evictions)],
            counts=True,
        )
        yield Gauge(
            "gateway_queue_requests",
            "Requests that wait for a place.",
            ("model",),
            [((pool,), depth) for pool, depth in self.queued().items()],
        )
        with contextlib.suppress(RuntimeError):  # where no loop runs there are none
            tasks = len(asyncio.all_tasks())
            yield Gauge("gateway_tasks", "Tasks of the event loop: steady when idle.", (), [((), tasks)])

    def _worker(self, worker: Worker, held: int) -> WorkerView:
        load, info = self._board.add(worker.id), worker.info
        drift = self._feedback.drift(worker.id)
        stride = 1 if info is None else info.block_size // self._registry.unit_of(info.model)
        now = self._clock()
        return WorkerView(
            id=worker.id,
            url=worker.spec.url,
            state=worker.state.value,
            reason=worker.reason,
            since_s=max(0.0, now - worker.since),
            refusal=self._guards.refusal(worker.id, now),
            weight=worker.spec.weight,
            model=worker.spec.model if info is None else info.model,
            adapters=() if info is None else info.adapters,
            version="" if info is None else info.version,
            block_size=None if info is None else info.block_size,
            capacity_blocks=load.capacity_blocks,
            indexed_blocks=self._feedback.last_blocks.without_ends(worker.id, held, stride),
            load=LoadView(
                load.requests,
                load.waiting_tokens,
                load.decoding_tokens,
                load.peer_requests,
                load.bound,
                load.prefill_rate,
            ),
            promise=PromiseView(
                drift.promises,
                drift.promised_tokens,
                drift.short_tokens,
                drift.extra_tokens,
                drift.drift,
                drift.degraded,
            ),
            events=self._events(worker.id),
        )
