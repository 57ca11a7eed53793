"""Whom to ask when nobody is trusted: every worker of a model is kept out by its breaker, by ejection or by
its health checks. That happens when the fault lies elsewhere (a few requests that no engine can take, a cable
pulled for a moment), so one is tried all the same, and its answer ends the rest for all who wait.

In this order: those that are only ejected, as if they were not; the one whose breaker closes soonest, as a
probe like half-open's, one at a time; one that fails its health checks and has nothing of ours in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from gateway.fleet.guards import Guards
from gateway.fleet.load import WorkerLoad
from gateway.fleet.worker import Worker, WorkerState
from gateway.routing.candidates import Refusal, Why, refusal
from gateway.types import WorkerId


class LastResort(msgspec.Struct, frozen=True):
    chosen: list[int]
    """Positions of those to choose from; none where there is nobody to ask, or where it is better to wait."""
    refusals: dict[WorkerId, Refusal]
    """What speaks against each, whether or not this request has been there."""


def last_resort(
    workers: Sequence[Worker],
    loads: Sequence[WorkerLoad],
    guards: Guards,
    exclude: Collection[WorkerId],
    now: float,
) -> LastResort | None:
    """None where somebody is trusted, if only full: then that one is waited for."""
    refusals: dict[WorkerId, Refusal] = {}
    for worker, load in zip(workers, loads, strict=True):
        refused = refusal(worker, load, guards, (), now)
        if refused is None or refused.why is not Why.DOWN:
            return None
        refusals[worker.id] = refused
    ejected: list[int] = []
    probed: list[int] = []
    failing: list[int] = []
    for i, (worker, load) in enumerate(zip(workers, loads, strict=True)):
        if worker.id in exclude:
            continue
        if worker.state is WorkerState.READY:
            rest = guards.busy_for(worker.id, now)
            if load.full or rest > 0 or not guards.probe_free(worker.id, now):
                refusals[worker.id] = Refusal(Why.TRYING, refusals[worker.id].text, rest or None)
            elif guards.rests_for(worker.id, now) is None:
                ejected.append(i)
            else:
                probed.append(i)
        elif worker.fails_checks and not load.requests:
            failing.append(i)
    if ejected:
        return LastResort(ejected, refusals)
    if not probed and any(refused.why is Why.TRYING for refused in refusals.values()):
        return LastResort([], refusals)
    by_rest = sorted(probed or failing, key=lambda i: guards.rests_for(workers[i].id, now) or 0.0)
    return LastResort(by_rest[:1], refusals)
