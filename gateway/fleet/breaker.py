"""A circuit breaker for one worker, and the mark of one that said it is overloaded. Time is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Verdict(Enum):
    """What the end of one try says about the worker."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """4xx, 429, a client that left: says nothing about the worker's health."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = 3
    """Consecutive failures that open it."""
    open_s: float = 5.0
    """How long it stays open; doubles with each probe that fails, up to `max_open_s`."""
    max_open_s: float = 60.0
    probe_s: float = 60.0
    """A probe not reported back by then is given up, so that a lost one can't shut a worker out for good."""


@dataclass(slots=True)
class Breaker:
    """Closed → failures in a row → open → time passes → half-open, one probe at a time → closed or open."""

    limits: BreakerLimits = field(default_factory=BreakerLimits)
    _failures: int = 0
    _open_until: float | None = None
    _open_for: float = 0.0
    _probe_until: float | None = None

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    @property
    def spotless(self) -> bool:
        """Closed, and its last request was no failure: another good one changes nothing."""
        return self._open_until is None and not self._failures

    def allows(self, now: float) -> bool:
        """Whether a request may go there now; half-open admits one at a time."""
        if self._open_until is None:
            return True
        return now >= self._open_until and self.probe_free(now)

    def probe_free(self, now: float) -> bool:
        """No probe waits for its answer."""
        return self._probe_until is None or now >= self._probe_until

    def retry_in(self, now: float) -> float:
        """Seconds until a request may be allowed; 0 where one is now."""
        if self._open_until is None:
            return 0.0
        return max(0.0, self._open_until - now, (self._probe_until or now) - now)

    def begin(self, now: float) -> bool:
        """A request was sent there, also before its time where there is nobody else. True where it is a
        probe: its end goes to `record` with `probe` set."""
        if self._open_until is None:
            return False
        self._probe_until = now + self.limits.probe_s
        return True

    def answered(self) -> None:
        """The probe's answer has begun: the next may go, though its end alone closes the breaker."""
        self._probe_until = None

    def record(self, verdict: Verdict, now: float, *, probe: bool = False, answered: bool = False) -> None:
        """How a request ended, and whether its answer had begun. While it is not closed, only the probes'
        word counts: others were sent before it opened, and their end is old news. A probe that fails before
        its time leaves the rest as it was."""
        if self._open_until is None:
            self._record_closed(verdict, now)
        elif probe:
            if not answered:
                self._probe_until = None
            if verdict is Verdict.SUCCESS:
                self.reset()
            elif verdict is Verdict.FAILURE and now >= self._open_until:
                self._open(now)

    def reset(self) -> None:
        self._failures, self._open_until, self._open_for, self._probe_until = 0, None, 0.0, None

    def _record_closed(self, verdict: Verdict, now: float) -> None:
        if verdict is Verdict.SUCCESS:
            self._failures = 0
        elif verdict is Verdict.FAILURE:
            self._failures += 1
            if self._failures >= self.limits.failures:
                self._open(now)

    def _open(self, now: float) -> None:
        limits = self.limits
        self._open_for = min(limits.max_open_s, self._open_for * 2 if self._open_for else limits.open_s)
        self._open_until = now + self._open_for
        self._probe_until = None


@dataclass(slots=True)
class OverloadMark:
    """A worker said 429 or "overloaded": left alone for a moment. It runs out by itself, and the worker's
    next answer clears it sooner."""

    rest_s: float = 1.0
    max_rest_s: float = 30.0
    _until: float = float("-inf")

    def set(self, now: float, retry_after: float | None = None) -> None:
        self._until = now + min(
            self.max_rest_s, self.rest_s if retry_after is None else max(0.0, retry_after)
        )

    def clear(self) -> None:
        self._until = float("-inf")

    def remaining(self, now: float) -> float:
        """Seconds it is still to be left alone; 0 where it is not."""
        return max(0.0, self._until - now)
