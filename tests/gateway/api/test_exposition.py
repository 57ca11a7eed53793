"""What a scraper is given is what prometheus_client writes, and nobody waits for all of it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from gateway.api.exposition import SLICE, exposition
from gateway.meters import Counter, Histogram

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


@pytest.mark.anyio
async def test_others_have_a_turn_after_every_slice(registry: CollectorRegistry) -> None:
    turns = 0

    async def request() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(request())
    await exposition(registry, "")
    other.cancel()
    assert turns >= 3


def _still(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if not line.startswith(b"process_")]
