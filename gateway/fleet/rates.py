"""How fast each worker prefills, learned from what it does."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from gateway.types import WorkerId

MIN_TOKENS = 512
"""Shorter prefills say more about fixed costs (network, scheduling) than about speed."""
MIN_SAMPLES = 8
DECAY = 0.95
"""Weight of the past at each sample: the last 20 samples or so decide."""
DEAD_BAND = 0.2
"""Workers this close to the fleet's median count as equal: noise must not make a favourite among equals."""


@dataclass(slots=True)
class _Sums:
    tokens: float = 0.0
    seconds: float = 0.0
    samples: int = 0


class PrefillRates:
    """Tokens a second per worker, as a ratio of decayed sums, so that long prefills weigh more than short."""

    def __init__(self) -> None:
        self._sums: dict[WorkerId, _Sums] = {}

    def observe(self, worker: WorkerId, tokens: int, seconds: float) -> None:
        """A first token came after `seconds`, in which the worker prefilled `tokens`: the request's own
        uncached ones and those that waited ahead of it."""
        if tokens < MIN_TOKENS or seconds <= 0:
            return
        sums = self._sums.setdefault(worker, _Sums())
        sums.tokens = sums.tokens * DECAY + tokens
        sums.seconds = sums.seconds * DECAY + seconds
        sums.samples += 1

    def tokens_per_second(self, worker: WorkerId) -> float | None:
        """None until enough was seen."""
        sums = self._sums.get(worker)
        if sums is None or sums.samples < MIN_SAMPLES:
            return None
        return sums.tokens / sums.seconds

    def relative(self) -> dict[WorkerId, float]:
        """Speed against the median of the workers measured so far; 1.0 within the dead band. Workers not
        yet measured are left out: they count as average."""
        rates = {w: rate for w in self._sums if (rate := self.tokens_per_second(w)) is not None}
        if not rates:
            return {}
        middle = median(rates.values())
        ratios = {worker: rate / middle for worker, rate in rates.items()}
        return {w: 1.0 if abs(ratio - 1.0) <= DEAD_BAND else ratio for w, ratio in ratios.items()}

    def forget(self, worker: WorkerId) -> None:
        self._sums.pop(worker, None)
