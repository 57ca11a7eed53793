"""Prometheus samples over a window: what grew, what a gauge was, what quantile a histogram gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs."""


@dataclass(slots=True)
class Scrape:
    """All samples of one target at one moment. `at` in seconds."""

    at: float
    samples: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def put(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.samples.setdefault(name, {})[tuple(sorted(labels.items()))] = value


def parse(text: str, at: float, prefixes: tuple[str, ...], *, buckets: bool = True) -> Scrape:
    """Prometheus' text format, of metrics whose names begin with one of `prefixes`; without histograms'
    `buckets` where nobody asks for a quantile of them. A line that can't be read is as good as absent."""
    scrape = Scrape(at)
    for line in text.splitlines():
        if not line.startswith(prefixes) or ("_bucket{" in line and not buckets):
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    scrape.put(sample.name, sample.labels, sample.value)
        except (ValueError, IndexError, KeyError):
            continue
    return scrape


class Series:
    """The scrapes of one target, oldest first. Unknown metrics count as 0 or None, never as an error."""

    def __init__(self, scrapes: Sequence[Scrape] = ()) -> None:
        self.scrapes = tuple(scrapes)

    @property
    def seconds(self) -> float:
        return self.scrapes[-1].at - self.scrapes[0].at if self.scrapes else 0.0

    def has(self, name: str) -> bool:
        return any(name in scrape.samples for scrape in self.scrapes)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Label sets of the newest scrape that has the metric."""
        for scrape in reversed(self.scrapes):
            if name in scrape.samples:
                return [dict(labels) for labels in scrape.samples[name]]
        return []

    def increase(self, name: str, **labels: str) -> float:
        """How much a counter grew, summed over what carries `labels`. A restart counts from zero again."""
        return sum(grown for _, grown in self._grown(name, labels))

    def increase_by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The same, split by the values of `label`."""
        found: dict[str, float] = {}
        for own, grown in self._grown(name, labels):
            value = dict(own).get(label, "")
            found[value] = found.get(value, 0.0) + grown
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        """A gauge at each scrape, summed over what carries `labels`; scrapes without it are left out."""
        return [sum(matching) for matching in self._matching(name, labels)]

    def highest(self, name: str, **labels: str) -> list[float]:
        """The same of a share: the highest of what carries `labels`, where a sum says nothing."""
        return [max(matching) for matching in self._matching(name, labels)]

    def mean(self, name: str, **labels: str) -> float:
        values = self.values(name, **labels)
        return sum(values) / len(values) if values else 0.0

    def peak(self, name: str, **labels: str) -> float:
        return max(self.values(name, **labels), default=0.0)

    def last(self, name: str, **labels: str) -> float | None:
        values = self.values(name, **labels)
        return values[-1] if values else None

    def average(self, histogram: str, **labels: str) -> float | None:
        """Mean of what a histogram observed in the window; None where it observed nothing."""
        count = self.increase(f"{histogram}_count", **labels)
        return self.increase(f"{histogram}_sum", **labels) / count if count else None

    def quantile(self, histogram: str, q: float, **labels: str) -> float | None:
        """As Prometheus' histogram_quantile: linear within a bucket, the last finite bound above them."""
        grown = self.increase_by(f"{histogram}_bucket", "le", **labels)
        bounds = sorted((float(le), count) for le, count in grown.items() if le)
        if not bounds or bounds[-1][1] <= 0:
            return None
        rank, low, below = q * bounds[-1][1], 0.0, 0.0
        for bound, count in bounds:
            if count >= rank and count > below:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (rank - below) / (count - below)
            low, below = (low if math.isinf(bound) else bound), count
        return low

    def _matching(self, name: str, labels: Mapping[str, str]) -> Iterator[list[float]]:
        for scrape in self.scrapes:
            matching = [v for own, v in scrape.samples.get(name, {}).items() if _carries(own, labels)]
            if matching:
                yield matching

    def _grown(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        seen: set[Labels] = set()
        for scrape in self.scrapes:
            seen.update(own for own in scrape.samples.get(name, {}) if _carries(own, labels))
        first = self.scrapes[0].samples if self.scrapes else {}
        for own in seen:
            values = [s.samples[name][own] for s in self.scrapes if own in s.samples.get(name, {})]
            # a series that turned up within the window was zero before it
            if own not in first.get(name, {}):
                values.insert(0, 0.0)
            yield own, sum(b - a if b >= a else b for a, b in pairwise(values))


def _carries(own: Labels, labels: Mapping[str, str]) -> bool:
    return labels.items() <= dict(own).items()
