"""Counters and histograms for a hot path: plain numbers while requests run, metric families at scrape time.

prometheus_client's own take a lock and several calls for every increment, which is most of what recording a
request costs. These are only ever changed from the event loop's thread, and that thread scrapes them too.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Self, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

_MOST_EXEMPLAR = 128
"""Characters of an exemplar's labels, names and values (OpenMetrics)."""


class _Later:
    """Samples that are made anew whenever somebody goes through them."""

    def __init__(self, make: Callable[[], Iterator[Sample]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Sample]:
        return self._make()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def later(family: Metric, make: Callable[[], Iterator[Sample]]) -> Metric:
    """`family` with the samples of `make`, as they are asked for: those of a hundred workers take a tenth of
    a second, so who reads them can pause. `make` must not look at what changes meanwhile."""
    family.samples = cast(list[Sample], _Later(make))  # nobody does more than go through them
    return family


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Raises ValueError for a negative `amount`: counters only grow."""
        if amount < 0:
            raise ValueError("counters only grow")
        self.value += amount

    def still(self) -> Self:
        """As it is now."""
        made = type(self)()
        made.value = self.value
        return made


class Spread:
    """One series of a histogram. `bounds` ascend; the bucket above the last is implied."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The last of each bucket that had one."""

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if exemplar and sum(len(k) + len(v) for k, v in exemplar.items()) <= _MOST_EXEMPLAR:
            self.exemplars[bucket] = Exemplar(dict(exemplar), value, time.time())

    def still(self) -> Self:
        """As it is now."""
        made = type(self)(self.bounds)
        made.counts, made.total = self.counts.copy(), self.total
        made.exemplars = self.exemplars.copy()
        return made


Series = TypeVar("Series", Count, Spread)


class _Family(Collector, Generic[Series]):
    """All series of one metric, by the values of its labels."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name, self.text, self.label_names = name, text, labels
        self._series: dict[tuple[str, ...], Series] = {}
        if not labels:
            self._series[()] = self._new()

    @abstractmethod
    def _new(self) -> Series: ...

    def labels(self, *values: object) -> Series:
        """The series of these values, in the label names' order. Raises ValueError for another number."""
        key = tuple(map(str, values))
        series = self._series.get(key)
        if series is None:
            if len(key) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(key)} of them")
            series = self._series[key] = self._new()
        return series

    def remove_where(self, label: str, value: str) -> None:
        place = self.label_names.index(label)
        for key in [key for key in self._series if key[place] == value]:
            del self._series[key]

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """What all series are at this moment."""
        now = [(key, series.still()) for key, series in self._series.items()]

        def samples() -> Iterator[Sample]:
            for key, series in now:
                yield from self._samples(dict(zip(self.label_names, key, strict=True)), series)

        return [later(self._family(), samples)]

    @abstractmethod
    def _family(self) -> Metric: ...

    @abstractmethod
    def _samples(self, labels: dict[str, str], series: Series) -> Iterator[Sample]: ...


class Counter(_Family[Count]):
    """`name` is without ``_total``."""

    def _new(self) -> Count:
        return Count()

    def inc(self, amount: float = 1.0) -> None:
        """Of a counter without labels."""
        self._series[()].inc(amount)

    def _family(self) -> Metric:
        return CounterMetricFamily(self.name, self.text, labels=self.label_names)

    def _samples(self, labels: dict[str, str], series: Count) -> Iterator[Sample]:
        yield Sample(f"{self.name}_total", labels, series.value)


class Histogram(_Family[Spread]):
    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' inclusive upper ends, without infinity."""
        self._bounds = tuple(bounds)
        self._ends = [*map(floatToGoString, self._bounds), "+Inf"]
        super().__init__(name, text, labels)

    def _new(self) -> Spread:
        return Spread(self._bounds)

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Of a histogram without labels."""
        self._series[()].observe(value, exemplar)

    def _family(self) -> Metric:
        return HistogramMetricFamily(self.name, self.text, labels=self.label_names)

    def _samples(self, labels: dict[str, str], series: Spread) -> Iterator[Sample]:
        below = 0
        for bucket, end in enumerate(self._ends):
            below += series.counts[bucket]
            exemplar = series.exemplars.get(bucket)
            yield Sample(f"{self.name}_bucket", {**labels, "le": end}, below, exemplar=exemplar)
        yield Sample(f"{self.name}_count", labels, below)
        yield Sample(f"{self.name}_sum", labels, series.total)
