"""A server under the connection guard that keeps what it was asked, and a client that writes byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import uvicorn

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.protocol import GuardedProtocol


class Echo:
    """Keeps how each request was read; answers `/big` with an endless stream, `/early` before its body, and
    `/last` too, as its connection's last."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["path"] not in ("/early", "/last")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append((scope["method"], scope["path"], body))
        self.headers.append(list(scope["headers"]))
        if scope["path"] == "/big":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.create_task(receive())
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)
            self.gone.set()
            return
        headers = [(b"content-length", b"2")]
        if scope["path"] == "/last":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def guarded(*, keep_alive: float = 5.0, **limits: Any) -> AsyncIterator[tuple[Echo, int]]:
    app = Echo()
    protocol: Any = partial(GuardedProtocol, limits=ConnectionLimits(**limits))
    config = uvicorn.Config(
        app, http=protocol, lifespan="off", log_config=None, access_log=False, port=0,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type] - whole seconds are long for a test
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    await server.on_tick(0)  # the date
    try:
        yield app, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """All that the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def parsed(answer: bytes) -> tuple[int, str]:
    """(status, error code) of an answer with an OpenAI error body, which must be the only one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


OK = b"POST /one HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"
NEXT = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
