"""How many tokens each worker was given to prefill lately.

Sums that fade as caches turn over: what was given before as many tokens as the fleet's caches hold still
counts 1/e. Tokens are the clock and not seconds, so an idle night forgets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from gateway.fleet.load import WorkerLoad
from gateway.types import WorkerId

UNKNOWN_CAPACITY = 400_000
"""Tokens counted for a cache of unknown size: an 80 GB GPU's beside an 8B model in bf16."""
_LARGEST_UNIT = 1e12


@dataclass(slots=True)
class RecentPrefill:
    _sums: dict[WorkerId, float] = field(default_factory=dict)
    _total: float = 0.0
    _unit: float = 1.0
    """What a token given now counts in the sums. It grows, which is the same as all sums fading, and costs
    nothing for the others."""

    def __len__(self) -> int:
        return len(self._sums)

    def of(self, worker: WorkerId) -> float:
        """Tokens; whoever joins later counts as average, so that strangers do not all go there."""
        return self._sums.get(worker, self._mean()) / self._unit

    def above_mean(self, loads: Sequence[WorkerLoad], most: float) -> list[float]:
        """By how many tokens each exceeds their average, no more than `most` in either direction."""
        get, unknown = self._sums.get, self._mean()
        sums = [get(load.worker, unknown) for load in loads]
        mean, unit = sum(sums) / len(sums), self._unit
        low, high = mean - most * unit, mean + most * unit
        return [
            (value - mean) / unit if low < value < high else -most if value < mean else most for value in sums
        ]

    def add(self, loads: Sequence[WorkerLoad], index: int, tokens: int) -> None:
        """The one at `index` was chosen among `loads`."""
        sums, mean = self._sums, None
        for load in loads:
            if load.worker not in sums:
                if mean is None:
                    mean = self._mean()
                sums[load.worker] = mean
                self._total += mean
        chosen = loads[index]
        horizon = len(loads) * (chosen.capacity_tokens or UNKNOWN_CAPACITY)
        self._unit *= exp(min(1.0, tokens / horizon))
        added = tokens * self._unit
        sums[chosen.worker] += added
        self._total += added
        if self._unit > _LARGEST_UNIT:
            self._rescale()

    def _mean(self) -> float:
        return self._total / len(self._sums) if self._sums else 0.0

    def _rescale(self) -> None:
        """Also forgets workers that have long been gone."""
        kept = ((worker, value / self._unit) for worker, value in self._sums.items())
        self._sums = {worker: value for worker, value in kept if value >= 1.0}
        self._total = sum(self._sums.values())
        self._unit = 1.0
