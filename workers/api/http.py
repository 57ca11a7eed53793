"""JSON in and out, event streams, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from workers.api.errors import InvalidBody
from workers.api.schema import Body, parse

T = TypeVar("T")

_CLIENT_CLOSED_REQUEST = 499


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def read(request: Request, kind: type[Body]) -> Body:
    """The request's body as `kind`; raises InvalidBody."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidBody("Unsupported Media Type: Only 'application/json' is allowed")
    return parse(await request.body(), kind)


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None as soon as the client is gone; `work` is cancelled then."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer_unless_client_leaves(request: Request, work: Coroutine[Any, Any, Any]) -> Response:
    content = await unless_client_leaves(request.receive, work)
    if content is None:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    return json_response(content)


class EventStream(Response):
    """Server-sent events, a frame for each object: with its `type` as the event's name where events are
    `named`, else as data alone, with ``[DONE]`` at the end."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Any, None], *, named: bool = False) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._events = events
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_client_leaves(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in events:
                name = f"event: {event['type']}\n".encode() if self._named else b""
                await _send_body(send, name + b"data: " + msgspec.json.encode(event) + b"\n\n")
            await _send_body(send, b"" if self._named else b"data: [DONE]\n\n", more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
