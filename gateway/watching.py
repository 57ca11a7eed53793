"""What is looked at from outside, put together: gauges of live state, hot prefixes, series that end."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import ProcessCollector

from gateway import __version__
from gateway.api.departed import Departed
from gateway.api.fleet_view import FleetView
from gateway.api.hot_prefixes import HotPrefixes
from gateway.api.state_gauges import Bounds, StateGauges
from gateway.fleet.guards import Guards
from gateway.fleet.registry import Registry
from gateway.metrics import LiveState, Metrics
from gateway.types import Clock


def export_state(
    metrics: Metrics,
    registry: Registry,
    view: FleetView,
    guards: Guards,
    bounds: Bounds,
    hot: HotPrefixes,
    readiness: Callable[[], str | None],
    clock: Clock,
) -> None:
    """Has Prometheus read them with every scrape, and drops the series of workers that left."""
    state = StateGauges(view, guards, bounds, version=__version__, readiness=readiness, clock=clock)
    departed = Departed(metrics.forget, clock)
    registry.subscribe(departed)
    ProcessCollector(registry=metrics.registry)
    for read in (view.gauges, state, hot.gauges, departed.sweep):
        metrics.registry.register(LiveState(read))
