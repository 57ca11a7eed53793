"""Outlier ejection: a worker that fails much more often than its peers rests for a while, and never more than
a part of the fleet at once: when most fail alike, the cause is not the workers.

The circuit breaker sees failures in a row. This sees the worker that fails every third request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.types import WorkerId


@dataclass(frozen=True, slots=True)
class OutlierLimits:
    min_requests: int = 20
    """Fewer in a window prove nothing."""
    failure_ratio: float = 0.3
    """From here on a worker may be an outlier…"""
    times_peers: float = 3.0
    """…if it fails this many times as often as the others together."""
    window_s: float = 30.0
    eject_s: float = 30.0
    """Rest at the first ejection; the n-th in a row lasts n times as long, up to `max_eject_s`."""
    max_eject_s: float = 300.0
    max_fraction: float = 0.34
    """Of the fleet, out at once; one worker may always be, if there are two."""


@dataclass(slots=True)
class _Record:
    requests: int = 0
    failures: int = 0
    until: float = float("-inf")
    ejections: int = 0


@dataclass(slots=True)
class Outliers:
    limits: OutlierLimits = field(default_factory=OutlierLimits)
    _records: dict[WorkerId, _Record] = field(default_factory=dict)
    _window_ends: float | None = None

    def record(self, worker: WorkerId, *, failed: bool) -> None:
        record = self._records.get(worker)
        if record is None:
            record = self._records[worker] = _Record()
        record.requests += 1
        record.failures += failed

    def forget(self, worker: WorkerId) -> None:
        self._records.pop(worker, None)

    def ejected(self, worker: WorkerId, now: float) -> bool:
        record = self._records.get(worker)
        return record is not None and now < record.until

    def rests_for(self, worker: WorkerId, now: float) -> float | None:
        """Seconds until its ejection ends; None where it is not ejected."""
        record = self._records.get(worker)
        return record.until - now if record is not None and now < record.until else None

    def sweep(self, workers: Iterable[WorkerId], now: float) -> list[WorkerId]:
        """At the end of each window: judge, eject, start the next. Returns the newly ejected, worst first."""
        if self._window_ends is not None and now < self._window_ends:
            return []
        first, self._window_ends = self._window_ends is None, now + self.limits.window_s
        if first:
            return []
        fleet = list(workers)
        records = {w: self._records.setdefault(w, _Record()) for w in fleet}
        room = self._room(fleet, now)
        worst_first = sorted(fleet, key=lambda w: _ratio(records[w]), reverse=True)
        out = [w for w in worst_first if self._is_outlier(w, records)][:room]
        for worker, record in records.items():
            if worker in out:
                record.ejections += 1
                rest = min(self.limits.max_eject_s, self.limits.eject_s * record.ejections)
                record.until = now + rest
            elif now >= record.until and record.requests >= self.limits.min_requests:
                record.ejections = 0  # it served a whole window well
            record.requests = record.failures = 0
        return out

    def _room(self, fleet: list[WorkerId], now: float) -> int:
        allowed = int(len(fleet) * self.limits.max_fraction)
        if len(fleet) > 1:
            allowed = max(1, allowed)
        return max(0, allowed - sum(self.ejected(w, now) for w in fleet))

    def _is_outlier(self, worker: WorkerId, records: dict[WorkerId, _Record]) -> bool:
        record, limits = records[worker], self.limits
        if record.requests < limits.min_requests or _ratio(record) < limits.failure_ratio:
            return False
        others = [r for w, r in records.items() if w != worker]
        requests = sum(r.requests for r in others)
        failures = sum(r.failures for r in others)
        return requests > 0 and _ratio(record) >= limits.times_peers * failures / requests


def _ratio(record: _Record) -> float:
    return record.failures / record.requests if record.requests else 0.0
