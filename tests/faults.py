"""An engine that goes wrong on purpose, on a real socket: it plays one script per request it is sent."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    """Names in lower case."""
    body: bytes
    connection: int
    """Number of the connection, from 0 in order of arrival."""

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


@dataclass
class Turn:
    """What a script works with: one request, and the raw socket to answer it on."""

    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The peer has closed the connection."""

    engine: FaultyEngine | None = None

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()
        if self.engine is not None:
            self.engine.bytes_sent += len(data)

    def close(self) -> None:
        self.closed = True
        self.writer.close()

    def reset(self) -> None:
        """RST in place of FIN; nothing where the peer was faster."""
        self.closed = True
        if not self.writer.is_closing():
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()

    async def watch(self) -> None:
        """Until the peer has gone."""
        try:
            while await self.reader.read(4096):
                pass
        except ConnectionError:
            pass
        self.gone.set()


Script = Callable[[Turn], Awaitable[None]]


class FaultyEngine:
    """`async with FaultyEngine(script, …) as engine`: request n plays script n, later ones the last. With a
    `model`, the questions of the control plane (GET) are answered as a healthy engine of it would."""

    def __init__(
        self,
        *scripts: Script,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        model: str | None = None,
    ) -> None:
        self.model = model
        self.scripts = list(scripts)
        self.seen: list[Seen] = []
        self.arrived = asyncio.Event()
        """A request has been read whole."""
        self.gone = asyncio.Event()
        """A peer has closed its connection inside an answer."""
        self.connections = 0
        self.bytes_sent = 0
        self._host = host
        self._port = port
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def refuse(self) -> None:
        """No connection is accepted any more, and those that are open end."""
        self._server.close()
        for writer in self._open:
            writer.close()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        number, self.connections = self.connections, self.connections + 1
        try:
            while (seen := await _read_request(reader, number)) is not None:
                if self.model is not None and seen.method == "GET":
                    await control(seen, self.model)(Turn(seen, reader, writer))
                    continue
                self.seen.append(seen)
                self.arrived.set()
                turn = Turn(seen, reader, writer, engine=self)
                await self.scripts[min(len(self.seen), len(self.scripts)) - 1](turn)
                if turn.gone.is_set():
                    self.gone.set()
                if turn.closed or turn.gone.is_set():
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._open.discard(writer)
            writer.close()


def control(seen: Seen, model: str) -> Script:
    """What a healthy engine of `model` says to a question of the control plane."""
    if seen.target == "/health":
        return answers(b"")
    if seen.target == "/v1/models":
        return answers(json.dumps({"object": "list", "data": [{"id": model, "object": "model"}]}).encode())
    return answers(b'{"detail":"Not Found"}', 404)


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = int(dict(headers).get("content-length", "0"))
    return Seen(method, target, headers, await reader.readexactly(length), connection)


# -- scripts ----------------------------------------------------------------------------------------------


def head(status: int = 200, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode()


def answers(
    body: bytes = b'{"ok": true}',
    status: int = 200,
    *lines: str,
    content_type: str = "application/json",
) -> Script:
    """A whole answer with a content-length."""

    async def script(turn: Turn) -> None:
        kind = f"content-type: {content_type}"
        await turn.write(head(status, kind, f"content-length: {len(body)}", *lines) + body)

    return script


def raw(*pieces: bytes, then: str = "close") -> Script:
    """Exactly these bytes, one write each; `then` is close, reset, keep, or hang (until the peer goes)."""

    async def script(turn: Turn) -> None:
        for piece in pieces:
            await turn.write(piece)
            # let each be a read of its own at the other end
            await asyncio.sleep(0.005)
        if then == "reset":
            turn.reset()
        elif then == "close":
            turn.close()
        elif then == "hang":
            await turn.watch()

    return script


def hangs() -> Script:
    return raw(then="hang")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = head(200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")


def streams(events: Sequence[bytes], *, end: bool = True, then: str = "keep") -> Script:
    """Server-sent events, a chunk each, and the final chunk where `end`."""
    pieces = [SSE_HEAD, *map(chunk, events), *([b"0\r\n\r\n"] if end else [])]
    return raw(*pieces, then=then)


def floods(total: int, piece: int = 16 * 1024) -> Script:
    """A stream of `total` bytes, as fast as the peer takes them."""

    async def script(turn: Turn) -> None:
        event = b"data: " + b"x" * (piece - 8) + b"\n\n"
        await turn.write(SSE_HEAD)
        for _ in range(total // piece):
            await turn.write(chunk(event))
        await turn.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    return script


def streams_for_ever(event: bytes) -> Script:
    """The same event every few milliseconds until the peer goes."""

    async def script(turn: Turn) -> None:
        watch = asyncio.create_task(turn.watch())
        await turn.write(SSE_HEAD)
        try:
            while not turn.gone.is_set():
                await turn.write(chunk(event))
                await asyncio.sleep(0.005)
        except ConnectionError:
            turn.gone.set()
        finally:
            watch.cancel()

    return script


def token(text: str, **more: object) -> bytes:
    """One chat chunk as an event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c", "choices": [choice], **more}).encode() + b"\n\n"


def usage_chunk(prompt: int, completion: int, cached: int) -> bytes:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
