"""What is looked at from outside, put together: gauges of live state, hot prefixes, the live page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from prometheus_client import ProcessCollector

from gateway import __version__
from gateway.api.departed import Departed
from gateway.api.fleet_view import FleetView
from gateway.api.hot_prefixes import HotPrefixes
from gateway.api.state_gauges import Bounds, StateGauges
from gateway.api.ui.decisions import Decisions
from gateway.api.ui.routes import ui_routes
from gateway.api.ui.snapshot import Snapshots
from gateway.api.ui.window import LiveWindow
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.replicas import Replicas
from gateway.metrics import LiveState, Metrics
from gateway.routing.admission import Admission
from gateway.routing.table import PolicyTable
from gateway.store.connection import Store
from gateway.types import Clock


class Watching:
    """What it hears of requests (`recorders`) becomes gauges (`export`) and a page (`page`)."""

    def __init__(
        self, view: FleetView, readiness: Callable[[], str | None], bounds: Bounds, clock: Clock
    ) -> None:
        self._view = view
        self._readiness = readiness
        self._bounds = bounds
        self._clock = clock
        self._hot = HotPrefixes()
        self._window = LiveWindow(clock)
        self._decisions = Decisions(time.time)
        self.recorders = self._hot, self._window, self._decisions

    def export(self, metrics: Metrics, registry: Registry, board: LoadBoard, guards: Guards) -> None:
        """Has Prometheus read the gauges with every scrape, and drops the series of workers that left."""
        state = StateGauges(
            self._view,
            guards,
            self._bounds,
            version=__version__,
            readiness=self._readiness,
            clock=self._clock,
        )
        departed = Departed(metrics.forget, board.still_serves, self._clock)
        registry.subscribe(departed)
        ProcessCollector(registry=metrics.registry)
        for read in (self._view.gauges, state, self._hot.gauges, departed.sweep):
            metrics.registry.register(LiveState(read))

    def page(
        self,
        policies: PolicyTable,
        queue: Admission,
        store: Store | None,
        replicas: Replicas | None,
        closing: Callable[[], bool],
    ) -> APIRouter:
        def shared() -> dict[str, Any]:
            redis = None if store is None else {"url": str(store.url), **asdict(store.status)}
            return {"redis": redis, "peers": () if replicas is None else replicas.sharing.status().peers}

        snapshots = Snapshots(
            self._view,
            self._window,
            shared,
            version=__version__,
            readiness=self._readiness,
            policies=policies.names,
            queued=lambda: sum(queue.depths().values()),
            index_limit=self._bounds.index_blocks,
            clock=self._clock,
        )
        return ui_routes(snapshots, self._decisions, closing)
