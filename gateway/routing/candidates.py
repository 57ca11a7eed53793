"""Who may take a request now, and why the others may not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from gateway.fleet.guards import Guards
from gateway.fleet.load import WorkerLoad
from gateway.fleet.worker import Worker, WorkerState
from gateway.types import WorkerId


class Why(Enum):
    DOWN = "down"
    """Not ready, draining, or kept out by breaker or ejection."""
    FULL = "full"
    """At its own bound, or it said itself that it is overloaded."""
    TRIED = "tried"
    """This request has been there."""


@dataclass(frozen=True, slots=True)
class Refusal:
    why: Why
    text: str
    retry_in: float | None = None
    """Seconds after which it is worth asking again, where that is known."""


def refusal(
    worker: Worker, load: WorkerLoad, guards: Guards, exclude: Collection[WorkerId], now: float
) -> Refusal | None:
    """None where the worker is a candidate."""
    if worker.id in exclude:
        return Refusal(Why.TRIED, "tried already for this request")
    if worker.state is not WorkerState.READY:
        text = f"{worker.state.value}: {worker.reason}" if worker.reason else worker.state.value
        return Refusal(Why.DOWN, text)
    suspect = guards.suspect(worker.id)
    if suspect and (reason := guards.refusal(worker.id, now)) is not None:
        return Refusal(Why.DOWN, reason)
    if load.max_requests is not None and load.full:
        return Refusal(Why.FULL, f"full: {load.all_requests} of {load.max_requests} requests in flight")
    if suspect and (rest := guards.busy_for(worker.id, now)) > 0:
        return Refusal(Why.FULL, f"it said that it is overloaded; left alone for {rest:.1f} s", rest)
    return None
