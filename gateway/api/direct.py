"""The short way from a request's bytes to its answer's, below ASGI.

ASGI costs every request and every chunk a message, a coroutine and their checks. What this server gives an
application beside `receive` and `send`, under `DIRECT` in its scope, writes bytes where they are handed in.
Under another server, or behind a middleware that has to see the messages, it is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.upstream.headers import Headers, line
from gateway.upstream.outlet import ClientGone
from gateway.upstream.wire import Flow

DIRECT = "gateway.direct"

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_LINES = {n: b"HTTP/1.1 %d %s" % (n, _PHRASES.get(n, b"")) for n in range(100, 1000)}
_BODILESS = (204, 304)
_UNTIL_CLOSED = -1
_LARGE = 16 * 1024
"""Bytes that are not copied to be written in one piece."""


class _NobodyWaits:
    """In place of an event, until somebody does."""

    def set(self) -> None:
        pass


_NOBODY_WAITS = _NobodyWaits()


def nobody() -> None:
    """In place of whoever is told that an answer is out."""


class Cycle(RequestResponseCycle):
    """uvicorn's, made of what differs from request to request, with its outlet in its scope."""

    logger = access_logger = logging.getLogger("uvicorn.error")
    access_log = False
    message_event: Any = _NOBODY_WAITS
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0

    def __init__(  # the base's own would set all of these for each request
        self,
        scope: Any,
        transport: Any,
        flow: FlowControl,
        default_headers: Headers,
        *,
        expect_100_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
        notes: dict[str, Any] | None = None,
    ) -> None:
        """`notes` are those of the request's head."""
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self.waiting_for_100_continue = expect_100_continue
        self.keep_alive = keep_alive
        self.on_response = on_response
        self.body = bytearray()
        scope[DIRECT] = DirectOutlet(self, notes)

    async def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """The application has given `result` or raised `error`, and no whole answer: uvicorn says what then
        becomes of it."""

        async def ended(*_: Any) -> Any:
            if error is not None:
                raise error
            return result

        await self.run_asgi(ended)

    async def receive(self) -> Any:
        if self.message_event is _NOBODY_WAITS:
            self.message_event = asyncio.Event()
            if self.body or not self.more_body:
                self.message_event.set()
        return await super().receive()


class DirectOutlet:
    """A `gateway.upstream.outlet.Outlet` on one of uvicorn's request cycles, whose state it keeps true, so
    that the rest of the server (keep-alive, pipelining, shutdown) sees an answer like any other."""

    __slots__ = (
        "_chunked", "_cycle", "_flow", "_head", "_left", "_on_gone", "_own_headers", "_resumed", "gone",
        "notes", "task",
    )  # fmt: skip

    task: asyncio.Task[Any]
    """Runs the application."""

    def __init__(self, cycle: Cycle, notes: dict[str, Any] | None = None) -> None:
        self.notes = notes
        """Of the request's head: what holds for all that have the same. None where nobody keeps any."""
        self._cycle = cycle
        self._flow: Flow | None = None
        self._head = b""
        self._chunked = False
        self._left = 0
        """Bytes of a body with a known length that are still to be sent."""
        self._resumed: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self.gone = False
        """The task has been cancelled, for the client left before its answer was whole."""
        self._own_headers = cycle.default_headers
        """What every answer of this server says; what is sent as messages gets it elsewhere."""

    # -- of the request -----------------------------------------------------------------------------------

    def whole_body(self) -> bytes | None:
        """None where more of it has to be waited for."""
        cycle = self._cycle
        return None if cycle.more_body else bytes(cycle.body)

    def on_gone(self, tell: Callable[[], None]) -> None:
        """`tell` is called once, when the client leaves before its answer is whole; at once if it has."""
        self._on_gone = tell
        if self._cycle.disconnected:
            tell()

    # what gateway.api.client_watch.ClientWatch does, where `leave` is what is told that the client has left

    def leave(self) -> None:
        self.gone = True
        self.task.cancel()

    def absolve(self) -> None:
        self.task.uncancel()

    def stop(self) -> None:
        self._on_gone = None

    # -- of the answer ------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        return self._cycle.response_started

    @property
    def ended(self) -> bool:
        return self._cycle.response_complete

    @property
    def blocked(self) -> bool:
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    @property
    def framed(self) -> Callable[[bytes], object] | None:
        cycle = self._cycle
        if not self._chunked or self._head or cycle.disconnected or cycle.response_complete:
            return None
        write: Callable[[bytes], object] = cycle.transport.write
        return write

    def attach(self, flow: Flow | None) -> None:
        self._flow = flow
        if flow is not None and self.blocked:
            flow.pause()

    def vary(self, header: bytes) -> None:
        """The answer would be another for another `header` of the request."""
        self._own_headers = [*self._own_headers, (b"vary", header)]

    def start(self, status: int, headers: Headers) -> None:
        """The head goes out with the first of the body. Raises RuntimeError for what no head can hold."""
        cycle = self._cycle
        headers = self._own_headers + headers
        lookup = dict(headers)
        if b"connection" in lookup:  # nobody says anything else there than that it ends
            cycle.keep_alive = False
            headers = [header for header in headers if header[0] != b"connection"]
        length = int(lookup.get(b"content-length", _UNTIL_CLOSED))
        parts = [_LINES[status], *map(line, headers)]
        if cycle.scope["method"] == "HEAD" or status in _BODILESS:
            length = 0
        elif length == _UNTIL_CLOSED:
            if cycle.scope["http_version"] == "1.1":
                self._chunked = True
                parts.append(b"transfer-encoding: chunked")
            else:
                cycle.keep_alive = False
        if not cycle.keep_alive:
            parts.append(b"connection: close")
        self._left = length
        head = b"\r\n".join((*parts, b"", b""))
        lines = len(parts) + 1
        if head.count(b"\n") != lines or head.count(b"\r") != lines or head.find(b"\0") >= 0:
            raise RuntimeError("a header of an answer has a line end or a zero in it")
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        self._head = head

    def body(self, data: bytes, *, last: bool) -> None:
        """Raises RuntimeError where it does not fit the length that the head has given."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete or not (data or last):
            return
        if self._chunked:
            end = b"\r\n0\r\n\r\n" if last else b"\r\n"
            size = len(data)
            if size > _LARGE:
                cycle.transport.write(b"%s%x\r\n" % (self._head, size))
                cycle.transport.write(data)
                data = end
            elif data:
                data = b"%s%x\r\n%s%s" % (self._head, size, data, end)
            else:
                data = self._head + b"0\r\n\r\n"
        else:
            if cycle.scope["method"] == "HEAD":
                data = b""
            if self._left != _UNTIL_CLOSED:
                self._left -= len(data)
                if self._left < 0 or (last and self._left):
                    raise RuntimeError("an answer that is not as long as it says")
            data = self._head + data if self._head else data
        self._head = b""
        if data:
            cycle.transport.write(data)
        if last:
            cycle.response_complete = True
            if cycle.message_event is not _NOBODY_WAITS:
                cycle.message_event.set()
            if not cycle.keep_alive:
                cycle.transport.close()
            cycle.on_response()

    async def drained(self) -> None:
        """Until the client has taken what was written, nearly. Raises ClientGone."""
        while self.blocked:
            if self._resumed is None:
                self._resumed = asyncio.get_running_loop().create_future()
            await self._resumed
        if self._cycle.disconnected:
            raise ClientGone

    def close(self) -> None:
        self._flow = self._on_gone = None
        # or scope, cycle and outlet hold each other, and only the collector would find them
        self._cycle.scope.pop(DIRECT, None)  # type: ignore[misc]

    # -- from the connection ------------------------------------------------------------------------------

    def paused(self) -> None:
        """The client takes nothing for now: so the worker's bytes are held back."""
        if self._flow is not None:
            self._flow.pause()

    def resumed(self) -> None:
        if self._flow is not None:
            self._flow.resume()
        if self._resumed is not None:
            if not self._resumed.done():
                self._resumed.set_result(None)
            self._resumed = None

    def left(self) -> None:
        """The client has gone; the cycle says `disconnected` by now where it had something to wait for."""
        self.resumed()
        if self._on_gone is not None and self._cycle.disconnected:
            tell, self._on_gone = self._on_gone, None
            tell()
