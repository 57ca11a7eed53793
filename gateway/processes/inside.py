"""The admin app of one process, with its metrics as values beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from gateway.processes.families import Family, families_of

PATH = "/process/metrics"

App = Callable[[Any, Any, Any], Awaitable[None]]
_decoder = msgspec.msgpack.Decoder(list[Family])


class Inside:
    def __init__(self, admin: App, metrics: CollectorRegistry) -> None:
        self._admin = admin
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._admin(scope, receive, send)
            return
        body = msgspec.msgpack.encode(families_of(self._metrics.collect()))
        headers = [(b"content-type", b"application/msgpack"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def families_in(body: bytes) -> list[Family]:
    families: list[Family] = _decoder.decode(body)
    return families
