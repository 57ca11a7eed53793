"""The admin app of one process, with its metrics as values beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client.registry import Collector

from gateway.api.exposition import slices, taken
from gateway.processes.families import Family, reading_of

PATH = "/process/metrics"

App = Callable[[Any, Any, Any], Awaitable[None]]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Family])


class Inside:
    def __init__(self, admin: App, metrics: Collector) -> None:
        self._admin = admin
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._admin(scope, receive, send)
            return
        body = await packed(self._metrics)
        headers = [(b"content-type", b"application/msgpack"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def packed(metrics: Collector) -> bytes:
    """What `families_in` reads, a slice at a time: requests go first."""
    families = await taken(metrics)
    pieces = [_array(len(families))]
    for metric in families:
        readings, count = bytearray(), 0
        for samples in slices(metric):
            for sample in samples:
                _encoder.encode_into(reading_of(sample), readings, -1)
            count += len(samples)
            await asyncio.sleep(0)
        fields = map(_encoder.encode, (metric.name, metric.type, metric.documentation))
        pieces += (_array(len(Family.__struct_fields__)), *fields, _array(count), bytes(readings))
    return b"".join(pieces)


def families_in(body: bytes) -> list[Family]:
    families: list[Family] = _decoder.decode(body)
    return families


def _array(length: int) -> bytes:
    """How an array of so many begins (msgpack's `array 32`)."""
    return b"\xdd" + length.to_bytes(4, "big")
