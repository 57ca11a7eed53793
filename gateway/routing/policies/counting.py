"""The baselines that look at requests alone: round robin, least requests, power of two choices.

Source of the last: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.ranking import ranks
from gateway.routing.policy import RequestShape
from gateway.types import WorkerId


@dataclass(slots=True)
class RoundRobin:
    """The candidate after the last one chosen, in the order of their names: so a turn is not lost when the
    last one is no candidate now."""

    name: str = "round_robin"
    _last: WorkerId = field(default=WorkerId(""), init=False)

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        return ranks([(load.worker <= self._last, load.worker) for load in loads])

    def chosen(
        self,
        request: RequestShape,
        loads: Sequence[WorkerLoad],
        matched_tokens: Sequence[int],
        index: int,
    ) -> None:
        self._last = loads[index].worker


@dataclass(slots=True)
class LeastRequests:
    name: str = "least_requests"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        return [float(load.all_requests) for load in loads]


@dataclass(slots=True)
class PowerOfTwo:
    """Of two candidates drawn at random, the one with fewer requests."""

    random: Random = field(repr=False)
    name: str = "power_of_two"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        drawn = self.random.sample(range(len(loads)), min(2, len(loads)))
        return [float(load.all_requests) if i in drawn else float("inf") for i, load in enumerate(loads)]
