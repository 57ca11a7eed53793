"""What an engine says of itself, whatever its names for it: vLLM's metrics, or SGLang's (0.5.23).

SGLang's gauges are set with each prefill batch, with each 40th decode step (`--decode-log-interval`) and when
the engine falls idle. Its schedulers have a series each, and with priorities one more for each: of every
data-parallel rank one series counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.diagnosis.dialects import DIALECTS, VLLM, Dialect, Meter
from gateway.diagnosis.series import Labels, Scrape, Series

_SCHEDULER = "tp_rank"
"""A label of what SGLang's schedulers say; its HTTP server has none of their ranks."""
_PARTS = ("pp_rank", "tp_rank", "moe_ep_rank")
"""Schedulers of one data-parallel rank, which may tell the same."""


class Meters:
    """One engine's figures over the window."""

    def __init__(self, series: Series) -> None:
        self.dialect = dialect_of(series)
        self.series = series if self.dialect is VLLM else Series([_once(each) for each in series.scrapes])

    @property
    def running(self) -> list[float]:
        """Requests at each scrape, of all ranks."""
        return self.series.values(self.dialect.running)

    @property
    def waiting(self) -> list[float]:
        return self.series.values(self.dialect.waiting)

    @property
    def usage(self) -> list[float]:
        """Share of K/V memory that running sequences hold, of the fullest rank. Cached blocks that nobody
        uses count as free."""
        return self.series.highest(self.dialect.usage)

    @property
    def preempted(self) -> float:
        return self.series.increase(self.dialect.preemptions)

    @property
    def generated(self) -> float:
        """Tokens."""
        return self._grown(self.dialect.generated)

    @property
    def computed(self) -> float:
        """Prompt tokens that the cache did not hold."""
        return self._grown(self.dialect.computed)

    @property
    def prompts(self) -> float:
        """Prompt tokens, cached ones included."""
        return self.series.increase(self.dialect.prompts)

    @property
    def gap(self) -> float | None:
        """Mean seconds between two tokens of an answer."""
        gaps = (self.series.average(name) for name in self.dialect.gaps)
        return next((gap for gap in gaps if gap is not None), None)

    def ttft(self, q: float) -> float | None:
        """Seconds."""
        return self.series.quantile(self.dialect.ttft, q)

    @property
    def block_sizes(self) -> set[int]:
        """Tokens; of all ranks, where the engine says so."""
        said = [
            config.get(label, "")
            for name, label in self.dialect.block_size_labels
            for config in self.series.labels(name)
        ]
        gauges = [scrape.samples.get(self.dialect.block_size, {}) for scrape in self.series.scrapes[-1:]]
        return {int(size) for size in said if size.isdigit()} | {
            int(size) for gauge in gauges for size in gauge.values() if size > 0
        }

    def _grown(self, meters: Iterable[Meter]) -> float:
        """Of the first that there is."""
        return next(
            (self.series.increase(name, **labels) for name, labels in meters if self.series.has(name)), 0.0
        )


def dialect_of(series: Series) -> Dialect:
    """vLLM's where nothing tells."""
    return next((each for each in DIALECTS if series.has(each.running)), VLLM)


def model_of(series: Series) -> str:
    """As the engine names it; empty where it does not."""
    names = (labels.get("model_name") for labels in series.labels(dialect_of(series).running))
    return next(filter(None, names), "")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _once(scrape: Scrape) -> Scrape:
    """Without the series that say of a scheduler what another one says already."""
    counted = Scrape(scrape.at)
    for name, samples in scrape.samples.items():
        counted.samples[name] = _first_of_each(samples) if _scheduler(samples) else samples
    return counted


def _scheduler(samples: Iterable[Labels]) -> bool:
    return any(_SCHEDULER in dict(labels) for labels in samples)


def _first_of_each(samples: dict[Labels, float]) -> dict[Labels, float]:
    kept: dict[Labels, tuple[list[int], Labels]] = {}
    for own in samples:
        labels = dict(own)
        if labels.get("priority"):
            continue  # the total is the one without
        place = [int(labels.get(part, "0") or 0) for part in _PARTS]
        rest = tuple(pair for pair in own if pair[0] not in _PARTS)
        if rest not in kept or place < kept[rest][0]:
            kept[rest] = place, own
    return {own: samples[own] for _, own in kept.values()}
