"""What keeps requests away from a worker that is not to be trusted just now: breaker, overload mark, outlier
ejection, and the slow start after it. One object for all, since one request's end feeds them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.fleet.breaker import Breaker, BreakerLimits, BreakerState, OverloadMark, Verdict
from gateway.fleet.health import Health, HealthLimits
from gateway.fleet.outliers import OutlierLimits, Outliers
from gateway.types import WorkerId

_FIRST_CREDIT = 0.5
"""As rounding does: one of the first two requests that would be its share."""
_WHOLE = 1.0 - 1e-9


@dataclass(slots=True)
class WorkerGuard:
    breaker: Breaker
    overload: OverloadMark
    health: Health


class Guards:
    """A worker that was never heard of has a clean record. Times are of the caller's clock, in seconds."""

    def __init__(
        self,
        *,
        breaker: BreakerLimits | None = None,
        outliers: OutlierLimits | None = None,
        health: HealthLimits | None = None,
    ) -> None:
        self._breaker_limits = breaker or BreakerLimits()
        self._health_limits = health or HealthLimits()
        self._outliers = Outliers(outliers or OutlierLimits())
        self._guards: dict[WorkerId, WorkerGuard] = {}
        self._ejected: set[WorkerId] = set()
        self.suspects: set[WorkerId] = set()
        """Of whom there may be something to say; decisions need not look at the others. To be read only."""
        self.starting: dict[WorkerId, float] = {}
        """Of workers in their slow start: requests that they may still get of those decided so far. To be
        read only."""
        self._failed: list[Callable[[WorkerId], None]] = []

    def on_failure(self, heard: Callable[[WorkerId], None]) -> None:
        """`heard` is told of every worker that has failed a request."""
        self._failed.append(heard)

    def of(self, worker: WorkerId) -> WorkerGuard:
        guard = self._guards.get(worker)
        if guard is None:
            health = Health(self._health_limits, on_return=partial(self._returned, worker))
            guard = WorkerGuard(Breaker(self._breaker_limits), OverloadMark(), health)
            self._guards[worker] = guard
        return guard

    def suspect(self, worker: WorkerId) -> bool:
        """False where `refusal` and `busy_for` have nothing against it for sure."""
        return worker in self.suspects

    def refusal(self, worker: WorkerId, now: float) -> str | None:
        """Why it must not get a request now, in words; None where it may."""
        guard = self.of(worker)
        if not guard.breaker.allows(now):
            if not guard.breaker.probe_free(now):
                half = "half " if guard.breaker.state(now) is BreakerState.HALF_OPEN else ""
                return f"breaker {half}open: a probe is on its way"
            return f"breaker open for another {guard.breaker.retry_in(now):.1f} s"
        if self._outliers.ejected(worker, now):
            return "ejected: it fails much more often than its peers"
        return None

    def busy_for(self, worker: WorkerId, now: float) -> float:
        """Seconds for which it asked to be left alone; 0 where it did not."""
        return self.of(worker).overload.remaining(now)

    def probes(self, worker: WorkerId, now: float) -> bool:
        """A request that went there would be a probe."""
        return worker in self.suspects and self.of(worker).breaker.state(now) is not BreakerState.CLOSED

    def begin(self, worker: WorkerId, now: float) -> bool:
        """A request goes there. True where it is a half-open breaker's probe."""
        return worker in self.suspects and self.of(worker).breaker.begin(now)

    def retry_in(self, worker: WorkerId, now: float) -> float | None:
        """Seconds until it may be asked again, where that is known."""
        if (rest := self.rests_for(worker, now)) is None:
            return self._outliers.rests_for(worker, now)
        return rest if self.probe_free(worker, now) else None

    def probe_free(self, worker: WorkerId, now: float) -> bool:
        """Its breaker is closed, or no probe waits there for its answer."""
        return self.of(worker).breaker.probe_free(now)

    def rests_for(self, worker: WorkerId, now: float) -> float | None:
        """Seconds until its breaker lets a probe in by itself; None where it is closed."""
        breaker = self.of(worker).breaker
        return None if breaker.state(now) is BreakerState.CLOSED else breaker.retry_in(now)

    def answered(self, worker: WorkerId) -> None:
        """A probe's answer has begun."""
        self.of(worker).breaker.answered()

    def record(
        self, worker: WorkerId, verdict: Verdict, now: float, *, probe: bool = False, answered: bool = False
    ) -> None:
        guard = self.of(worker)
        if verdict is Verdict.SUCCESS and worker not in self.suspects and guard.breaker.spotless:
            self._outliers.record(worker, failed=False)
            return
        was_closed = guard.breaker.state(now) is BreakerState.CLOSED
        guard.breaker.record(verdict, now, probe=probe, answered=answered)
        closed = guard.breaker.state(now) is BreakerState.CLOSED
        if not closed:
            self.suspects.add(worker)
        elif not was_closed:
            guard.health.returned(now)
        if verdict is Verdict.SUCCESS:
            guard.overload.clear()
        if verdict is not Verdict.NEUTRAL:
            self._outliers.record(worker, failed=verdict is Verdict.FAILURE)
        if verdict is Verdict.FAILURE:
            for heard in self._failed:
                heard(worker)

    def busy(self, worker: WorkerId, now: float, retry_after: float | None = None) -> None:
        """It answered 429 or that it is overloaded."""
        self.of(worker).overload.set(now, retry_after)
        self.suspects.add(worker)

    def sweep(self, workers: list[WorkerId], now: float) -> list[WorkerId]:
        """Once in a while: judge outliers, begin the slow start of those whose rest is over. Returns the
        newly ejected."""
        out = self._outliers.sweep(workers, now)
        self._ejected.update(out)
        self.suspects.update(out)
        for worker in [w for w in self._ejected if not self._outliers.ejected(w, now)]:
            self._ejected.discard(worker)
            self.of(worker).health.returned(now)
        self.suspects = {w for w in self.suspects if self._has_something(w, now)}
        for worker in [w for w in self.starting if self.slow_start(w, now) >= 1.0]:
            del self.starting[worker]
        return out

    # -- slow start ---------------------------------------------------------------------------------------

    def slow_start(self, worker: WorkerId, now: float) -> float:
        """The part of its fair share that a worker may have, in (0, 1]."""
        return self.of(worker).health.slow_start(now)

    def held_back(self, worker: WorkerId, now: float) -> bool:
        """It has come back, and had the share that it may have so far."""
        credit = self.starting.get(worker)
        return credit is not None and credit < _WHOLE and self.slow_start(worker, now) < 1.0

    def given(self, chosen: WorkerId, candidates: Sequence[WorkerId], now: float) -> None:
        """A request went to one of `candidates`. Of a request each could have had 1 ⁄ candidates; one that
        starts slowly is credited its part of that, and has a whole request to get once it has 1."""
        for worker in candidates:
            credit = self.starting.get(worker)
            if credit is None:
                continue
            if worker == chosen:
                credit = max(0.0, credit - 1.0)
            if credit < _WHOLE:
                credit += self.slow_start(worker, now) / len(candidates)
            self.starting[worker] = credit

    def _returned(self, worker: WorkerId) -> None:
        self.starting[worker] = _FIRST_CREDIT

    def forget(self, worker: WorkerId) -> None:
        self._guards.pop(worker, None)
        self._ejected.discard(worker)
        self.suspects.discard(worker)
        self.starting.pop(worker, None)
        self._outliers.forget(worker)

    def _has_something(self, worker: WorkerId, now: float) -> bool:
        if self.of(worker).breaker.state(now) is not BreakerState.CLOSED:
            return True
        return self._outliers.ejected(worker, now) or self.busy_for(worker, now) > 0
