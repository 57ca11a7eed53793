"""What a router could do that knows who will come back when: separate caches, separate queues, one replica.

A run is repeated with its predecessor as forecast; the first one's is a run of the default. Where a request
goes then costs its own time to first token squared, and for everybody who comes back to that worker before
its prefill ends, what that adds to their waits squared: long waits are what the 99th percentile consists of.
Its work counts once more as it is, for those nobody knows of, and so does, squared, what must end before
there is room. Of all runs the best by p99 counts.

It is no bound, for another assignment may be better still; it shows how much of the way from the default to
the floor is a matter of what is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.replay.content import Content
from benchmarks.replay.outcome import quantile
from benchmarks.replay.simulation import Progress, Run, Setup, Simulation
from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.estimated_ttft import EstimatedTTFT, overflow_tokens
from gateway.routing.policy import RequestShape
from workers.sequence import SequenceState
from workers.timing import Timing

RUNS = 3


@dataclass(slots=True)
class Queue:
    """What one engine still has to prefill, as far as a router can tell."""

    seconds: dict[int, float] = field(default_factory=dict)
    """By request, in order: how long an idle engine would take for it."""
    begun: float = 0.0
    """When the first of them came to its turn."""

    def wait(self, now: float) -> float:
        return max(0.0, sum(self.seconds.values()) - (now - self.begun)) if self.seconds else 0.0

    def add(self, number: int, seconds: float, now: float) -> None:
        if not self.seconds:
            self.begun = now
        self.seconds[number] = seconds

    def remove(self, number: int, now: float) -> None:
        if self.seconds.pop(number, None) is not None:
            self.begun = now


@dataclass(slots=True)
class Foresight:
    """A policy. Whoever asks sets `now` first."""

    timings: Sequence[Timing]
    arrivals: Mapping[int, float]
    """By request, when it will be asked."""
    queues: list[Queue] = field(init=False)
    coming: list[set[int]] = field(init=False)
    """By worker, the next turns of those whose past lies there."""
    now: float = 0.0
    name: str = "hindsight"

    def __post_init__(self) -> None:
        self.queues = [Queue() for _ in self.timings]
        self.coming = [set() for _ in self.timings]

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        return [
            self._cost(worker, request, load, matched)
            for worker, (load, matched) in enumerate(zip(loads, matched_tokens, strict=True))
        ]

    def seconds(self, worker: int, prompt_tokens: int, matched: int) -> float:
        cached = min(matched, prompt_tokens - 1)
        return self.timings[worker].step_seconds([(prompt_tokens - cached, cached)])

    def _cost(self, worker: int, request: RequestShape, load: WorkerLoad, matched: int) -> float:
        own = self.seconds(worker, request.prompt_tokens, matched)
        begin = self.now + self.queues[worker].wait(self.now)
        end = begin + own
        cost = (end - self.now) ** 2 + own
        for turn in self.coming[worker]:
            when = max(self.now, self.arrivals[turn])
            if when < end:
                cost += (end - when) ** 2 - max(0.0, begin - when) ** 2
        over = overflow_tokens(load, request) if load.capacity_tokens else 0
        return cost + self.seconds(worker, over, 0) ** 2 if over else cost


class Repeat(Simulation):
    def __init__(self, content: Content, setup: Setup, arrivals: Mapping[int, float]) -> None:
        self._eye = Foresight([profile.timing for profile in setup.profiles], arrivals)
        super().__init__(content, setup, lambda _random: self._eye)
        self._turns: dict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(content.trace.requests):
            if request.parent is not None:
                self._turns[request.parent].append(number)

    def _ask(self, number: int, now: float) -> None:
        eye = self._eye
        eye.now = now
        for coming in eye.coming:
            coming.discard(number)
        super()._ask(number, now)
        decision = self._decisions[number]
        route = decision.route
        seconds = eye.seconds(decision.worker, route.prompt_tokens, route.matched_tokens)
        eye.queues[decision.worker].add(number, seconds, now)
        eye.coming[decision.worker].update(self._turns[number])

    def _on_token(self, worker: int, sequence: SequenceState, now: float) -> None:
        self._eye.queues[worker].remove(int(sequence.request.request_id), now)
        super()._on_token(worker, sequence, now)


def best_in_hindsight(
    content: Content, setup: Setup, progress: Progress | None = None, runs: int = RUNS
) -> Run:
    """Raises ValueError for more than one replica, and where requests are refused or prompts sliced."""
    if setup.replicas != 1:
        raise ValueError(f"{setup.replicas} replicas cannot share one foresight")
    if setup.max_ttft_s:
        raise ValueError("who knows everything refuses nobody")
    if setup.slicing.after_s:
        raise ValueError("what the foresight expects of queues holds for prompts in one piece")
    last = Simulation(content, setup, lambda _random: EstimatedTTFT()).run()
    found: list[tuple[float, Run]] = []
    for _ in range(runs):
        last = Repeat(content, setup, {n: outcome.arrived for n, outcome in enumerate(last.outcomes)}).run()
        found.append((quantile(sorted(outcome.ttft for outcome in last.outcomes), 0.99), last))
    if progress is not None:
        progress(len(content.trace.requests))
    return min(found, key=lambda pair: pair[0])[1]
