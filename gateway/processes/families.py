"""Metrics on their way from a process to the supervisor: families as values.

Not as text: to read the text form of ten thousand series takes seconds of Python, this takes a twentieth.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar, Sample


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """An exemplar: one observation, and the trace that it belongs to."""

    labels: dict[str, str]
    value: float
    at: float | None
    """Unix time."""


class Reading(msgspec.Struct, array_like=True, frozen=True):
    name: str
    """With its suffix: `_total`, `_bucket`."""
    labels: dict[str, str]
    value: float
    mark: Mark | None = None


class Family(msgspec.Struct, array_like=True, frozen=True):
    name: str
    type: str
    text: str
    readings: list[Reading]


def families_of(metrics: Iterable[Metric]) -> list[Family]:
    """As a registry collects them."""
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            [reading_of(sample) for sample in metric.samples],
        )
        for metric in metrics
    ]


def reading_of(sample: Sample) -> Reading:
    return Reading(sample.name, sample.labels, sample.value, _mark(sample.exemplar))


def metrics_of(families: Iterable[Family]) -> Iterable[Metric]:
    """As the encoders of both text forms want them."""
    for family in families:
        metric = Metric(family.name, family.text, family.type)
        for reading in family.readings:
            mark = reading.mark
            exemplar = None if mark is None else Exemplar(mark.labels, mark.value, mark.at)
            metric.add_sample(reading.name, reading.labels, reading.value, exemplar=exemplar)
        yield metric


def _mark(exemplar: Exemplar | None) -> Mark | None:
    if exemplar is None:
        return None
    return Mark(
        exemplar.labels, exemplar.value, None if exemplar.timestamp is None else float(exemplar.timestamp)
    )
