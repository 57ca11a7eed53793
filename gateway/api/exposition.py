"""Metrics as text, a slice at a time: a hundred workers make twenty thousand lines; requests go first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

SLICE = 250
"""Samples that are written at one go: some milliseconds."""


class _Of(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def exposition(metrics: Collector, accept: str) -> tuple[bytes, str]:
    """What `metrics` are at this moment, in the form that a scraper with the header `accept` takes, and that
    form's content type. Byte for byte what prometheus_client writes at one go."""
    encode, content_type = choose_encoder(accept)
    end = encode(_Of())
    texts: list[bytes] = []
    for metric in list(metrics.collect()):  # all of one moment
        head = encode(_Of(_part(metric, 0, 0))).removesuffix(end)
        texts.append(head)
        for part in _parts(metric):
            texts.append(encode(_Of(part)).removeprefix(head).removesuffix(end))
            await asyncio.sleep(0)
    return b"".join((*texts, end)), content_type


def _parts(metric: Metric) -> Iterator[Metric]:
    for first in range(0, len(metric.samples), SLICE):
        yield _part(metric, first, first + SLICE)


def _part(metric: Metric, first: int, behind: int) -> Metric:
    part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    part.samples = metric.samples[first:behind]
    return part
