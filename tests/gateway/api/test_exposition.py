"""What a scraper is given is what prometheus_client writes, and nobody waits for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.api.exposition import SLICE, exposition
from gateway.meters import Counter, Histogram, later
from gateway.processes.inside import packed

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture
def registry() -> CollectorRegistry:
    """A family of none, one of one, and one of more than two slices, some of it with exemplars."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    made.register(Counter("nothing", "Never counted.", ("who",)))
    alone, times = Counter("alone", "One.", ()), Histogram("x_seconds", "Times.", ("who",), (0.1, 1.0))
    made.register(alone)
    made.register(times)
    for who in range(2 * SLICE // 5 + 3):  # five samples each
        times.labels(f'w"{who}').observe(0.5, {"trace_id": "a"} if who % 3 else None)
    return made


@pytest.mark.anyio
@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "text/plain;version=1.0.0", OPENMETRICS])
async def test_it_is_byte_for_byte_what_is_written_at_one_go(
    registry: CollectorRegistry, accept: str
) -> None:
    encode, expected_type = choose_encoder(accept)
    text, content_type = await exposition(registry, accept)
    assert content_type == expected_type
    # the process' own figures go on
    assert _still(text) == _still(encode(registry))
    assert text.count(b"x_seconds_bucket") == 3 * (2 * SLICE // 5 + 3)


async def text(metrics: Collector) -> bytes:
    return (await exposition(metrics, ""))[0]


class Watched(Collector):
    """Two gauges and a counter of 1,000 samples each, and how often somebody looked or was given a sample."""

    def __init__(self) -> None:
        self.done = 0

    def collect(self) -> Iterator[Metric]:
        for name, kind in (("one", "gauge"), ("other", "gauge"), ("count", "counter")):
            self.done += SLICE  # to look at the fleet is as much work as to write a slice
            yield later(Metric(name, "A thousand.", kind), partial(self._samples, name))

    def _samples(self, name: str) -> Iterator[Sample]:
        for number in range(1000):
            self.done += 1
            yield Sample(name, {"n": str(number)}, number)


@pytest.mark.anyio
@pytest.mark.parametrize("write", [text, packed])
async def test_others_have_a_turn_after_every_slice_and_every_gauge(
    write: Callable[[Collector], Awaitable[bytes]],
) -> None:
    metrics, at_turns = Watched(), [0]

    async def request() -> None:
        while True:
            at_turns.append(metrics.done)
            await asyncio.sleep(0)

    other = asyncio.create_task(request())
    await write(metrics)
    other.cancel()
    assert metrics.done == 3 * SLICE + 3000
    # the counter is looked at with the first slice of all: both are work of the same turn
    assert max(after - before for before, after in pairwise(at_turns)) == 2 * SLICE
    assert sum(after > before for before, after in pairwise(at_turns)) >= 2 + 3000 // SLICE - 1


@pytest.mark.anyio
async def test_counts_are_those_of_the_moment_when_it_was_asked_for() -> None:
    registry = CollectorRegistry()
    asked, answered = Counter("asked", "Requests.", ("who",)), Histogram("x_seconds", "Times.", (), (1.0,))
    registry.register(asked)
    registry.register(answered)
    for who in range(3 * SLICE):
        asked.labels(who).inc()
    reading = asyncio.ensure_future(exposition(registry, ""))
    await asyncio.sleep(0)  # it has taken them, and written a slice
    for who in range(3 * SLICE):
        asked.labels(who).inc()
    asked.labels("new").inc()
    answered.observe(0.5)
    lines = (await reading)[0].splitlines()
    assert [line for line in lines if line.startswith(b"asked_total{")] == [
        b'asked_total{who="%d"} 1.0' % who for who in range(3 * SLICE)
    ]
    assert [line for line in lines if line.startswith(b"x_seconds")] == [
        b'x_seconds_bucket{le="1.0"} 0.0', b'x_seconds_bucket{le="+Inf"} 0.0', b"x_seconds_count 0.0",
        b"x_seconds_sum 0.0",
    ]  # fmt: skip


def _still(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if not line.startswith(b"process_")]
