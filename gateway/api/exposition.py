"""Metrics as text, a slice at a time: a hundred workers make twenty thousand lines; requests go first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SLICE = 100
"""Samples that are made and written at one go: two or three milliseconds."""


class _Of(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


async def exposition(metrics: Collector, accept: str) -> tuple[bytes, str]:
    """What `metrics` are now, in the form that a scraper with the header `accept` takes, and that form's
    content type. Byte for byte what prometheus_client writes at one go."""
    encode, content_type = choose_encoder(accept)
    end = encode(_Of())
    texts: list[bytes] = []
    for metric in await taken(metrics):
        head = encode(_Of(_part(metric, []))).removesuffix(end)
        texts.append(head)
        for samples in slices(metric):
            texts.append(encode(_Of(_part(metric, samples))).removeprefix(head).removesuffix(end))
            await asyncio.sleep(0)
    return b"".join((*texts, end)), content_type


async def taken(metrics: Collector) -> list[Metric]:
    """All families, whose samples may be made later. Counts are of one moment, since shares are made of them;
    each gauge is of its own: to look at a hundred workers takes milliseconds."""
    families = []
    for metric in metrics.collect():
        families.append(metric)
        if metric.type == "gauge":
            await asyncio.sleep(0)
    return families


def slices(metric: Metric) -> Iterator[list[Sample]]:
    """Its samples, so many at a time as may be made at one go."""
    samples = iter(metric.samples)
    while some := list(islice(samples, SLICE)):
        yield some


def _part(metric: Metric, samples: list[Sample]) -> Metric:
    part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    part.samples = samples
    return part
