"""The health of one worker as a state machine, and the slow start of one that comes back. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HealthLimits:
    interval_s: float = 5.0
    jitter: float = 0.2
    """Each wait is drawn from interval × (1 ± jitter), so that replicas don't check in step."""
    unhealthy_after: int = 3
    """Checks that must fail in a row before a ready worker is given up."""
    healthy_after: int = 2
    """Checks that must pass in a row before a lost worker is trusted again."""
    slow_start_s: float = 30.0
    slow_start_from: float = 0.2
    """Share of its weight with which a returning worker begins."""

    def wait(self, random: Callable[[], float]) -> float:
        """Seconds until the next check; `random` gives 0 ≤ x < 1."""
        return self.interval_s * (1 + self.jitter * (2 * random() - 1))


@dataclass(slots=True)
class Health:
    """Unknown (None) until the first check that passes, for an engine may take minutes to load; after that
    only a run of equal answers changes the state."""

    limits: HealthLimits = field(default_factory=HealthLimits)
    healthy: bool | None = None
    _streak: int = 0
    """Answers in a row that contradict the state."""
    _returned_at: float | None = None
    on_return: Callable[[], None] | None = None
    """Called whenever a slow start begins."""

    def record(self, passed: bool, now: float) -> bool:
        """One check's answer. True where the state changed."""
        if passed == self.healthy:
            self._streak = 0
            return False
        self._streak += 1
        if self.healthy is None:
            if not passed:
                return False
        else:
            needed = self.limits.healthy_after if passed else self.limits.unhealthy_after
            if self._streak < needed:
                return False
            if passed:
                self.returned(now)
        self.healthy, self._streak = passed, 0
        return True

    def returned(self, now: float) -> None:
        """It comes back from elsewhere (an ejection, a drain): slow start begins."""
        self._returned_at = now
        if self.on_return is not None:
            self.on_return()

    def slow_start(self, now: float) -> float:
        """Factor of its weight, from `slow_start_from` to 1.0, linear in time since it came back. A worker
        seen for the first time starts at 1.0: at a fleet's start all are cold alike."""
        if self._returned_at is None or self.limits.slow_start_s <= 0:
            return 1.0
        age = max(0.0, now - self._returned_at) / self.limits.slow_start_s
        if age >= 1.0:
            self._returned_at = None
            return 1.0
        return self.limits.slow_start_from + (1.0 - self.limits.slow_start_from) * age
