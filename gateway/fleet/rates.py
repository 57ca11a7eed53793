"""How fast each worker prefills, learned from what it does.

A token of a long context costs several times one of a short, so tokens a second say as much about what a
worker was asked as about the worker. What the whole fleet shows is taken as the price: seconds ≈ a · tokens
+ b · pairs, pairs of tokens that attend to each other, fitted by least squares. A worker's speed is what its
work should have taken by that price over what it took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from gateway.types import WorkerId

MIN_TOKENS = 512
"""Shorter prefills say more about fixed costs (network, scheduling) than about speed."""
MIN_SAMPLES = 8
DECAY = 0.95
"""Weight of the past at each sample: the last 20 samples or so decide."""
DEAD_BAND = 0.2
"""Workers this close to the fleet's median count as equal: noise must not make a favourite among equals."""
_FLEET_DECAY = 0.995


@dataclass(slots=True)
class _Sums:
    tokens: float = 0.0
    pairs: float = 0.0
    seconds: float = 0.0
    samples: int = 0


@dataclass(slots=True)
class _Price:
    """Normal equations of the fit, each sample weighted by one over its seconds: the error counts relative
    to the square root, between an error in seconds and one in per cent."""

    tt: float = 0.0
    tp: float = 0.0
    pp: float = 0.0
    ts: float = 0.0
    ps: float = 0.0
    samples: int = 0

    def learn(self, tokens: float, pairs: float, seconds: float) -> None:
        keep, weight = _FLEET_DECAY, 1.0 / seconds
        self.tt = self.tt * keep + weight * tokens * tokens
        self.tp = self.tp * keep + weight * tokens * pairs
        self.pp = self.pp * keep + weight * pairs * pairs
        self.ts = self.ts * keep + tokens
        self.ps = self.ps * keep + pairs
        self.samples += 1

    def of(self) -> tuple[float, float]:
        """Seconds a token and a pair, neither below zero."""
        alone = self.ts / self.tt
        determinant = self.tt * self.pp - self.tp * self.tp
        if determinant <= 1e-9 * self.tt * self.pp:
            return alone, 0.0
        token = (self.ts * self.pp - self.ps * self.tp) / determinant
        pair = (self.ps * self.tt - self.ts * self.tp) / determinant
        if pair <= 0:
            return alone, 0.0
        return (token, pair) if token > 0 else (0.0, self.ps / self.pp)


@dataclass(slots=True)
class PrefillRates:
    """Ratios of decayed sums, so that long prefills weigh more than short."""

    _sums: dict[WorkerId, _Sums] = field(default_factory=dict)
    _price: _Price = field(default_factory=_Price)

    def observe(self, worker: WorkerId, tokens: int, seconds: float, pairs: float = 0.0) -> None:
        """A first token came after `seconds`, in which the worker prefilled `tokens`: the request's own
        uncached ones, whose attention read `pairs`, and those that waited ahead of it."""
        if tokens < MIN_TOKENS or seconds <= 0:
            return
        sums = self._sums.setdefault(worker, _Sums())
        sums.tokens = sums.tokens * DECAY + tokens
        sums.pairs = sums.pairs * DECAY + pairs
        sums.seconds = sums.seconds * DECAY + seconds
        sums.samples += 1
        self._price.learn(tokens, pairs, seconds)

    def tokens_per_second(self, worker: WorkerId) -> float | None:
        """None until enough was seen."""
        sums = self._sums.get(worker)
        if sums is None or sums.samples < MIN_SAMPLES:
            return None
        return sums.tokens / sums.seconds

    def seconds(self, worker: WorkerId, tokens: int, pairs: float) -> float | None:
        """What that many uncached tokens, whose attention reads `pairs`, take the worker by themselves; an
        average one, where it has not been measured. None until enough was seen."""
        if self._price.samples < MIN_SAMPLES:
            return None
        token, pair = self._price.of()
        own, sums = token * tokens + pair * pairs, self._sums.get(worker)
        if sums is None or sums.samples < MIN_SAMPLES:
            return own
        return own * sums.seconds / (token * sums.tokens + pair * sums.pairs)

    def relative(self) -> dict[WorkerId, float]:
        """Speed against the median of the workers measured so far; 1.0 within the dead band. Workers not
        yet measured are left out: they count as average."""
        measured = {worker: sums for worker, sums in self._sums.items() if sums.samples >= MIN_SAMPLES}
        if not measured:
            return {}
        token, pair = self._price.of()
        speeds = {w: (token * sums.tokens + pair * sums.pairs) / sums.seconds for w, sums in measured.items()}
        middle = median(speeds.values())
        ratios = {worker: speed / middle for worker, speed in speeds.items()}
        return {w: 1.0 if abs(ratio - 1.0) <= DEAD_BAND else ratio for w, ratio in ratios.items()}

    def forget(self, worker: WorkerId) -> None:
        self._sums.pop(worker, None)


def attended_pairs(prompt_tokens: int, cached_tokens: int) -> float:
    """(query, visible key) pairs of the tokens that are not cached."""
    return (prompt_tokens * prompt_tokens - cached_tokens * cached_tokens) / 2
