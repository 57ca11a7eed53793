"""How much of the traffic opens like the few most used prompts: what one cache entry is worth.

A prompt's opening is the key of its eighth block (128 tokens at 16 a block), or of its last one where it is
shorter. Counted as Misra and Gries do ("Finding repeated elements", 1982) over a bounded number of openings:
when there are too many, as much is taken from all counts as leaves half of the places free. All counts are
halved every few thousand requests, so that yesterday fades.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

from gateway.api.record import RequestRecord
from gateway.metrics import Gauge
from gateway.types import BlockKey

DEPTH = 8
_OPENINGS = 256
_HALVE_EVERY = 8192
_MODELS = 64
TOPS = (1, 10)


@dataclass(slots=True)
class Openings:
    """Bounded counts of the most frequent openings. A count is under-estimated by what was taken from all, at
    most twice `total / most`."""

    most: int = _OPENINGS
    halve_every: int = _HALVE_EVERY
    counts: dict[BlockKey, float] = field(default_factory=dict)
    total: float = 0.0
    _since: int = 0

    def see(self, opening: BlockKey) -> None:
        self.total += 1
        counts = self.counts
        counts[opening] = counts.get(opening, 0.0) + 1
        if len(counts) > self.most:
            self._make_room()
        self._since += 1
        if self._since >= self.halve_every:
            self._since = 0
            self.total /= 2
            self.counts = {k: n / 2 for k, n in self.counts.items()}

    def _make_room(self) -> None:
        """Seldom enough to cost each request next to nothing: half of the places must fill up again."""
        taken = sorted(self.counts.values())[len(self.counts) // 2]
        self.counts = {k: n - taken for k, n in self.counts.items() if n > taken}

    def share(self, top: int) -> float:
        """0…1: of the requests, those that open like one of the `top` most frequent."""
        return min(1.0, sum(nlargest(top, self.counts.values())) / self.total) if self.total else 0.0


class HotPrefixes:
    """A recorder of requests."""

    def __init__(self) -> None:
        self._models: dict[str, Openings] = {}

    def record(self, record: RequestRecord) -> None:
        if not record.prefilled:
            return
        for keys in record.keys:
            if keys:
                self._openings(record.model).see(keys[min(DEPTH, len(keys)) - 1])

    def gauges(self) -> Iterable[Gauge]:
        yield Gauge(
            "gateway_hot_prefix_share",
            "Share of recent requests that open like one of the `top` most used prompts (their first 8 "
            "blocks).",
            ("model", "top"),
            [((m, str(top)), o.share(top)) for m, o in self._models.items() for top in TOPS],
        )

    def _openings(self, model: str) -> Openings:
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MODELS:
                return Openings()  # more models than a panel can show: not counted
            known = self._models[model] = Openings()
        return known
