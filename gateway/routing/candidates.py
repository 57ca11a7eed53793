"""Who may take a request now, and why the others may not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

import msgspec

from gateway.errors import Overloaded, Unavailable
from gateway.fleet.guards import Guards
from gateway.fleet.load import WorkerLoad
from gateway.fleet.worker import Worker, WorkerState
from gateway.types import WorkerId

RETRY_AFTER_S = 1.0
"""Told to callers where nothing better is known."""


class Why(Enum):
    DOWN = "down"
    """Not ready, draining, or kept out by breaker or ejection."""
    FULL = "full"
    """At its own bound, or it said itself that it is overloaded."""
    TRIED = "tried"
    """This request has been there."""
    TRYING = "trying"
    """Nobody is trusted, and of this one it is being found out just now whether it is back."""


class Refusal(msgspec.Struct, frozen=True):
    why: Why
    text: str
    retry_in: float | None = None
    """Seconds after which it is worth asking again, where that is known."""


NO_REFUSALS: Mapping[WorkerId, Refusal] = {}


def all_take_more(workers: Sequence[Worker], loads: Sequence[WorkerLoad]) -> bool:
    """All are ready and have a place free: the two things of `refusal` that every worker is asked for."""
    ready = WorkerState.READY
    for worker, load in zip(workers, loads, strict=True):
        if worker.state is not ready:
            return False
        if (load.max_requests is not None or load.learned_max is not None) and load.full:
            return False
    return True


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
        return Refusal(Why.DOWN, reason, guards.retry_in(worker.id, now))
    if load.full:
        return Refusal(Why.FULL, f"full: {load.all_requests} of {load.bound} requests in flight")
    if suspect and (rest := guards.busy_for(worker.id, now)) > 0:
        return Refusal(Why.FULL, f"it said that it is overloaded; left alone for {rest:.1f} s", rest)
    return None


def some_full(refusals: Collection[Refusal]) -> bool:
    """Somebody would take it later."""
    return any(refused.why is Why.FULL for refused in refusals)


def worth_waiting(refusals: Collection[Refusal]) -> bool:
    """Somebody takes more later, or it is being found out."""
    return any(refused.why in (Why.FULL, Why.TRYING) for refused in refusals)


def nobody_left(model: str, refusals: Collection[Refusal]) -> Unavailable:
    """The error where there is no candidate: 503 if all are down, 429 if some are full or were tried."""
    known = (refused.retry_in for refused in refusals if refused.retry_in is not None)
    retry_after = min(known, default=RETRY_AFTER_S)
    if all(refused.why in (Why.DOWN, Why.TRYING) for refused in refusals):
        reasons = "; ".join(sorted({refused.text for refused in refusals})) or "it has none now"
        return Unavailable(f"no worker of model {model!r} is available: {reasons}", retry_after=retry_after)
    if some_full(refusals):
        return Overloaded(f"every worker of model {model!r} is full", retry_after=retry_after)
    return Overloaded(f"no other worker of model {model!r} is left to try", retry_after=retry_after)
