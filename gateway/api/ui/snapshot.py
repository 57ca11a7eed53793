"""One reading of everything the page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.api.fleet_view import FleetView, WorkerView
from gateway.api.ui.window import SHARES, LiveWindow, OfWorker, Step, ratio, smoothed
from gateway.types import Clock

FRESH_S = 0.9
"""Several pages share one reading."""


class Snapshots:
    def __init__(
        self,
        view: FleetView,
        window: LiveWindow,
        shared: Callable[[], dict[str, Any]],
        *,
        version: str,
        readiness: Callable[[], str | None],
        policies: Callable[[], dict[str, str]],
        queued: Callable[[], int],
        index_limit: int,
        clock: Clock,
    ) -> None:
        """`shared` tells what replicas share: ``redis`` (None where there is none) and ``peers``."""
        self._view = view
        self._window = window
        self._shared = shared
        self._version = version
        self._readiness = readiness
        self._policies = policies
        self._queued = queued
        self._index_limit = index_limit
        self._clock = clock
        self._made = float("-inf")
        self._json = b""
        self._reading = asyncio.Lock()

    async def json(self) -> bytes:
        async with self._reading:
            now = self._clock()
            if now - self._made >= FRESH_S:
                self._json, self._made = msgspec.json.encode(await self._read()), now
            return self._json

    async def _read(self) -> dict[str, Any]:
        """Each of it takes a millisecond or some where a hundred workers are busy: requests go between."""
        recent = self._window.recent()
        await asyncio.sleep(0)
        series = []
        for step in smoothed(self._window.series()):
            series.append(_point(step))
            await asyncio.sleep(0)
        index = self._view.index()
        workers = self._view.workers()
        return {
            "version": self._version,
            "not_ready": self._readiness(),
            "policies": self._policies(),
            "queued": self._queued(),
            "in_flight": sum(w.load.requests for w in workers),
            "now": _now(recent, self._window.recent_s),
            "series": series,
            "workers": [_worker(w, recent.workers.get(w.id, OfWorker())) for w in workers],
            "index": {
                "blocks": index.blocks,
                "limit": self._index_limit,
                "placed": index.placed_pairs,
                "evictions": index.evictions,
            },
            **self._shared(),
        }


def _now(recent: Step, seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "requests": recent.requests,
        "requests_s": recent.requests / seconds,
        "failed": recent.failed,
        "prompt_tokens_s": recent.prompt / seconds,
        "generated_tokens_s": recent.generated / seconds,
        **_shares(recent),
        "ttft": {
            share: {"count": times.count, "p50": times.quantile(0.5), "p95": times.quantile(0.95)}
            for share, times in recent.ttft.items()
        },
    }


def _shares(step: Step) -> dict[str, float | None]:
    return {
        "reusable": ratio(step.reusable, step.prompt),
        "promised": ratio(step.promised, step.prompt),
        "delivered": ratio(step.cached, step.reported),
    }


def _point(step: Step) -> dict[str, Any]:
    return {
        **_shares(step),
        "requests": step.requests,
        **{share: step.ttft[share].quantile(0.5) if share in step.ttft else None for share in SHARES},
    }


def _worker(worker: WorkerView, recent: OfWorker) -> dict[str, Any]:
    ready = worker.state == "ready"
    return {
        "id": worker.id,
        "model": worker.model,
        "state": "held back" if ready and worker.refusal else worker.state,
        "reason": worker.refusal or worker.reason,
        "requests": worker.load.requests,
        "peer_requests": worker.load.peer_requests,
        "bound": worker.load.max_requests,
        "waiting_tokens": worker.load.waiting_tokens,
        "blocks": worker.indexed_blocks,
        "capacity": worker.capacity_blocks,
        "hit_rate": ratio(recent.cached, recent.reported),
        "answered": recent.requests,
        "degraded": worker.promise.degraded,
        "events": None if worker.events is None else worker.events.state,
    }
