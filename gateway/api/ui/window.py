"""What happened in the last quarter of an hour, in steps of five seconds. Bounded, whatever the traffic."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.api.record import RequestRecord
from gateway.types import Clock

STEP_S = 5.0
STEPS = 180
RECENT = 60
"""Steps that "now" means: five minutes."""
WARM = 0.8
SHARES = ("cold", "partial", "warm")
"""Kinds of answers by how much of their prompt matched, as `share_of` has them."""

_PER_DECADE = 20
_FASTEST_S = 1e-4
_BINS = 7 * _PER_DECADE


class Times:
    """A histogram of seconds in logarithmic bins, 100 µs to 1,000 s; quantiles within 6 %."""

    __slots__ = ("bins", "count")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0

    def add(self, seconds: float) -> None:
        place = int(math.log10(max(seconds, _FASTEST_S) / _FASTEST_S) * _PER_DECADE)
        place = min(place, _BINS - 1)
        self.bins[place] = self.bins.get(place, 0) + 1
        self.count += 1

    def merge(self, other: Times) -> None:
        for place, count in other.bins.items():
            self.bins[place] = self.bins.get(place, 0) + count
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Seconds, the middle of its bin; None where nothing was seen."""
        wanted = q * self.count
        seen = 0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= wanted:
                return _FASTEST_S * float(10 ** ((place + 0.5) / _PER_DECADE))
        return None


@dataclass(slots=True)
class OfWorker:
    requests: int = 0
    reported: int = 0
    cached: int = 0


@dataclass(slots=True)
class Step:
    """Counts of requests and tokens in one step of time, or of several put together."""

    number: int = 0
    requests: int = 0
    failed: int = 0
    prompt: int = 0
    reusable: int = 0
    promised: int = 0
    reported: int = 0
    cached: int = 0
    generated: int = 0
    ttft: dict[str, Times] = field(default_factory=dict)
    workers: dict[str, OfWorker] = field(default_factory=dict)

    def add(self, other: Step) -> None:
        for name in (
            "requests",
            "failed",
            "prompt",
            "reusable",
            "promised",
            "reported",
            "cached",
            "generated",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for share, times in other.ttft.items():
            self.ttft.setdefault(share, Times()).merge(times)
        for worker, counts in other.workers.items():
            mine = self.workers.setdefault(worker, OfWorker())
            mine.requests += counts.requests
            mine.reported += counts.reported
            mine.cached += counts.cached


class LiveWindow:
    """A recorder of requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self._steps: deque[Step] = deque(maxlen=STEPS)

    def record(self, record: RequestRecord) -> None:
        step = self._now()
        step.requests += 1
        step.failed += record.status >= 500
        if record.worker is None:
            return
        step.prompt += record.prompt_tokens
        step.reusable += record.reusable_tokens
        step.promised += record.matched_tokens
        mine = step.workers.get(record.worker)
        if mine is None:
            mine = step.workers[record.worker] = OfWorker()
        mine.requests += 1
        if record.usage is not None:
            step.generated += record.usage.completion_tokens
            if record.usage.cached_tokens is not None:
                step.reported += record.usage.prompt_tokens
                step.cached += record.usage.cached_tokens
                mine.reported += record.usage.prompt_tokens
                mine.cached += record.usage.cached_tokens
        if record.ttft_s is not None:
            share = share_of(record.matched_tokens, record.prompt_tokens)
            step.ttft.setdefault(share, Times()).add(record.ttft_s)

    @property
    def recent_s(self) -> float:
        """How long `recent` has lasted, in seconds."""
        return min(RECENT * STEP_S, max(STEP_S, self._clock() - self._began))

    def recent(self) -> Step:
        """The last five minutes, put together."""
        oldest = self._number() - RECENT
        total = Step()
        for step in self._steps:
            if step.number > oldest:
                total.add(step)
        return total

    def series(self) -> list[Step]:
        """The last quarter of an hour, oldest first, quiet steps included."""
        last = self._number()
        known = {step.number: step for step in self._steps}
        return [known.get(n) or Step(n) for n in range(last - STEPS + 1, last + 1)]

    def _number(self) -> int:
        return int(self._clock() // STEP_S)

    def _now(self) -> Step:
        number = self._number()
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(Step(number))
        return self._steps[-1]


def share_of(matched: int, prompt: int) -> str:
    if matched <= 0:
        return "cold"
    return "warm" if matched >= WARM * prompt else "partial"


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def smoothed(steps: list[Step], width: int = 6) -> Iterable[Step]:
    """Each step with those just before it: half a minute has enough answers for a share of them."""
    for end in range(width, len(steps) + 1, width):
        total = Step(steps[end - 1].number)
        for step in steps[end - width : end]:
            total.add(step)
        yield total
