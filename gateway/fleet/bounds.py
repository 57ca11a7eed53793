"""How many requests a worker takes at once, learned from its own refusals. Pure; time is passed in.

Additive increase, multiplicative decrease would halve a bound that the engine has just told exactly: so a
refusal sets it to what was in flight without the refused one, and good answers at the bound raise it by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.fleet.load import WorkerLoad
from gateway.types import WorkerId

FORGET_S = 300.0
"""A bound that was not confirmed by a refusal for so long is given up."""


@dataclass(slots=True)
class _Learned:
    limit: int
    until: float
    answers: int = 0
    """Good ones at the bound since it last changed."""


@dataclass(slots=True)
class LearnedBounds:
    """Writes `learned_max` of loads."""

    _learned: dict[WorkerId, _Learned] = field(default_factory=dict)

    def refused(self, load: WorkerLoad, now: float) -> None:
        """The worker was too busy for one of the requests that `load` still counts."""
        limit = max(1, load.all_requests - 1)
        known = self._learned.get(load.worker)
        if known is not None:
            limit = min(limit, known.limit)
        self._learned[load.worker] = _Learned(limit, now + FORGET_S)
        load.learned_max = limit

    def answered(self, load: WorkerLoad, now: float) -> None:
        """It served one of the requests that `load` still counts."""
        known = self._learned.get(load.worker)
        if known is None:
            return
        if now >= known.until:
            del self._learned[load.worker]
            load.learned_max = None
            return
        if load.all_requests < known.limit:
            return
        known.answers += 1
        if known.answers >= known.limit:
            known.limit, known.answers = known.limit + 1, 0
            load.learned_max = known.limit

    def forget(self, worker: WorkerId) -> None:
        self._learned.pop(worker, None)
