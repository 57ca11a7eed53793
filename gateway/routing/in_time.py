"""Admission by the expected time to first token: a request that nobody is expected to answer in time is
refused at once, while its caller can still go elsewhere, instead of making those behind it late as well.

    expected = (tokens that wait there + uncached tokens) / tokens a second, measured on that worker

A worker that has not been measured yet counts as in time. A prompt that takes longer than that by itself can
never be in time; it is judged by its wait alone, or it would be refused by an idle fleet too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.fleet.load import WorkerLoad
from gateway.fleet.rates import PrefillRates


class Expected(msgspec.Struct, frozen=True):
    """Seconds to a first token."""

    wait: float
    own: float

    @property
    def ttft(self) -> float:
        return self.wait + self.own

    def in_time(self, most: float) -> bool:
        return self.wait + (self.own if self.own <= most else 0.0) <= most


def expected(load: WorkerLoad, uncached_tokens: int, rates: PrefillRates) -> Expected | None:
    """None where the worker has not been measured."""
    speed = rates.tokens_per_second(load.worker)
    return Expected(load.all_waiting_tokens / speed, uncached_tokens / speed) if speed else None


def first_in_time(
    scores: Sequence[float], times: Sequence[Expected | None], winner: int, most: float
) -> int | None:
    """The winner, or else the lowest score among those expected to be in time; None where nobody is."""
    punctual = [i for i, time in enumerate(times) if time is None or time.in_time(most)]
    if winner in punctual:
        return winner
    return min(punctual, key=scores.__getitem__, default=None)
