"""What happened in the last quarter of an hour, in steps of five seconds. Bounded, whatever the traffic."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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

    def add(self, other: OfWorker, sign: int = 1) -> None:
        self.requests += sign * other.requests
        self.reported += sign * other.reported
        self.cached += sign * other.cached


class _Sums:
    """What the steps of a stretch of time say of each worker, kept as steps come and go: to add up five
    minutes of a hundred workers with every look would hold requests up."""

    def __init__(self) -> None:
        self._sums: dict[str, OfWorker] = {}
        self._steps: deque[Step] = deque()

    def of(self, steps: Iterable[Step], oldest: int, newest: int) -> dict[str, OfWorker]:
        """Of those of `steps` (oldest first, none before `newest` changes any more) that are numbered from
        `oldest` to `newest`. Neither may go back from call to call."""
        known = self._steps[-1].number if self._steps else oldest - 1
        last = Step()
        for step in steps:
            if step.number == newest:
                last = step
            elif step.number > known:
                self._add(step, 1)
                self._steps.append(step)
        while self._steps and self._steps[0].number < oldest:
            self._add(self._steps.popleft(), -1)
        total = {worker: replace(counts) for worker, counts in self._sums.items()}
        for worker, counts in last.workers.items():
            total.setdefault(worker, OfWorker()).add(counts)
        return total

    def _add(self, step: Step, sign: int) -> None:
        for worker, counts in step.workers.items():
            mine = self._sums.setdefault(worker, OfWorker())
            mine.add(counts, sign)
            if not mine.requests:
                del self._sums[worker]


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
        """All but what is counted by worker."""
        self.requests += other.requests
        self.failed += other.failed
        self.prompt += other.prompt
        self.reusable += other.reusable
        self.promised += other.promised
        self.reported += other.reported
        self.cached += other.cached
        self.generated += other.generated
        for share, times in other.ttft.items():
            self.ttft.setdefault(share, Times()).merge(times)


class LiveWindow:
    """A recorder of requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._sums = _Sums()

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
        newest = self._number()
        oldest = newest - RECENT + 1
        total = Step(workers=self._sums.of(self._steps, oldest, newest))
        for step in self._steps:
            if step.number >= oldest:
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
