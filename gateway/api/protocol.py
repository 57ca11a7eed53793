"""One connection of a client, held to bounds: what uvicorn's parser leaves open is closed here.

A head has to arrive in time and within a size, one request has one reading (RFC 9112, sections 3.2 and 6), a
client that takes nothing of its answer is let go, and there is a last connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.direct import Cycle
from gateway.api.headers import new_request_id, request_id
from gateway.api.known_heads import KnownHeads
from gateway.api.parting import Leave, Parting
from gateway.api.request_heads import (
    FRAMING,
    FULL,
    LARGE,
    SLOW,
    Refusal,
    RequestHead,
    judged,
    unreadable,
    written,
)
from gateway.api.turns import Turns
from gateway.upstream.headers import Headers, value_of

_SOON_S = 0.002
"""Seconds until an application is begun though its body is not there yet. Many clients send that behind the
head: to wait for it in there, and be gone on with, is dear."""


class GuardedProtocol(HttpToolsProtocol):
    """Where the parser's callbacks do as uvicorn's do they say so here again: a request has a dozen of them,
    and each handed on is a call more."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        new_id: Callable[[], str] = new_request_id,
        known: KnownHeads | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._new_id = new_id
        self._known = KnownHeads() if known is None else known
        self._head: RequestHead
        """The last one."""
        self._head_bytes = 0
        self._in_head = False
        self._in_body = self._body_begun = False
        self._framing_bytes = 0
        self._only_framing = self._completed = False
        self._trailers = self._trailer_bytes = 0
        self._upgrade_asked = False
        self._head_again = False
        self._refusal: Refusal | None = None
        """What was found at fault where it is not the parser that gave up."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._rests_since: float | None = None
        """When its last answer was out, on the loop's clock; None while one is asked for."""
        self._leave: Leave
        self._scope: dict[str, Any]
        """What is the same for all of its requests with one head, `_scope_of`."""
        self._scope_of: RequestHead | None = None
        self._parting: Parting | None = None
        self._turns = Turns(self.app, self.loop, self.tasks)
        """Whoever has his turn there, others may have come behind him, and `cycle` is the last of them."""
        self._soon: asyncio.TimerHandle | None = None
        """Of a request whose application is yet to begin."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
        }
        self._leave = Leave(transport, self._part)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(FULL)
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if self._parting is not None:
            self._parting.end()
        super().connection_lost(exc)
        if self._soon is not None:
            self._begin_now()  # to find that nobody is there
        self._turns.end()

    def _part(self) -> None:
        """An answer was the last one: closes at once, or when a client that is still sending has read it."""
        if self._in_head or self._in_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if self._parting is not None or self.transport.is_closing():
            return
        self._turns.waiting.clear()
        self._stop_head_timer()
        self.flow.resume_reading()
        self._parting = Parting(self.transport, self.loop)

    def data_received(self, data: bytes) -> None:
        if self._parting is not None:
            self._parting.drop(data)
            return
        if self.parser is None or self.transport.is_closing():
            return  # refused already; what still comes is not looked at
        self._rests_since = None
        before = self.cycle
        between = not (self._in_head or self._in_body) and (before is None or before.response_complete)
        if between and (known := self._known.find(data)) is not None:
            if self._head_timer is not None:
                self._stop_head_timer()
            self._take(*known)
            return
        self._only_framing, self._completed = True, False
        try:
            self._parse(data)
        except HttpParserError as error:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(self._refusal or unreadable(error, data, in_head=self._in_head))
        if self._in_head:
            # behind the end of another request it has begun somewhere in here
            self._head_bytes += 0 if self._completed else len(data)
            if self._head_bytes > self._limits.max_head:
                self._refuse(LARGE)
                return
        elif self._in_body and self._only_framing:
            # a line that never ends reaches no callback of the parser's
            self._framing_bytes += len(data)
            if self._framing_bytes > self._limits.max_head:
                self._refuse(FRAMING)
                return
        turns = self._turns
        if turns.waiting and not self.transport.is_closing() and turns.too_far_ahead(len(data)):
            self.flow.pause_reading()
        if self._head_timer is None and self._awaits_head() and not self.transport.is_closing():
            self._start_head_timer()
        if between and (self._completed or self._in_body) and not self._in_head:
            self._known.learn(data, self._head, self.headers)

    def _take(self, head: RequestHead, headers: Headers, body: bytes, whole: bool) -> None:
        """A request whose head is known. Where it is whole, the parser is not shown it, and stands between
        two requests as before; else it gets the body, behind as much of the head as frames that."""
        self._head, self.headers = head, headers
        cycle = self._new_cycle()
        if whole:
            cycle.body = body  # type: ignore[assignment]  # nothing is added to it
            cycle.more_body = False
            self._turns.start(cycle)
        else:
            self._begin_body()
            self._soon = self.loop.call_later(_SOON_S, self._begin_now)
            self._go_on_with_the_body()
            self.parser.feed_data(body)

    def _begin_now(self) -> None:
        assert self._soon is not None  # noqa: S101 - asked before, or it has rung
        self._soon.cancel()
        self._soon = None
        self._turns.start(cast(Cycle, self.cycle))

    def _parse(self, data: bytes) -> None:
        """Nothing here upgrades, so a request that asks for it is one like any other (RFC 9110, section 7.8).
        The parser thinks otherwise and stops behind its head, at a known byte: it goes on from there with the
        framing that the head has given. Raises HttpParserError."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                if not self._head.keep_alive:
                    # behind the head of a last request this one drops all that comes, its body as well
                    self.parser = HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._go_on_with_the_body()
            else:
                return

    def _go_on_with_the_body(self) -> None:
        """Shows the parser the head again, without what made it stop."""
        framing = [
            b"%s: %s\r\n" % header
            for header in self.headers
            if header[0] in (b"content-length", b"transfer-encoding")
        ]
        if not self._head.keep_alive:
            framing.append(b"connection: close\r\n")  # what comes behind the body is nobody's
        self._upgrade_asked, self._head_again = False, True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))

    def on_message_begin(self) -> None:
        if self._head_again:
            return
        self.url, self.headers = b"", []
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        if not self._head_again:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are counted and dropped: no field that we know may come as one (RFC 9110, 6.5.1)."""
        if not self._in_body:
            self.headers.append((name.lower(), value))
            return
        if self._head_again:
            return
        self._trailers += 1
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailers > self._limits.max_headers or self._trailer_bytes > self._limits.max_head:
            self._fail(FRAMING)

    def on_headers_complete(self) -> None:
        if self._head_again:
            self._head_again = False
            return
        self._upgrade_asked = self.parser.should_upgrade()
        self._in_head = False
        if self._head_timer is not None:
            self._stop_head_timer()
        head = judged(
            self.parser, self.url, self.headers,
            max_bytes=self._limits.max_head, max_headers=self._limits.max_headers,
        )  # fmt: skip
        if isinstance(head, Refusal):
            self._fail(head)
        self._head = head
        self._begin_body()
        self._begin_cycle()

    def _begin_body(self) -> None:
        self.expect_100_continue = self._head.expects_100
        self._in_body, self._only_framing = True, False
        self._body_begun = False
        self._framing_bytes = self._trailers = self._trailer_bytes = 0

    def _begin_cycle(self) -> None:
        """The request's head is whole: an application gets it, or it waits behind the one before it."""
        before = self.cycle
        cycle = self._new_cycle()
        if before is None or before.response_complete:
            self._turns.start(cycle)
        else:
            self._turns.waiting.append(cycle)

    def _new_cycle(self) -> Cycle:
        head = self._head
        if head is not self._scope_of:
            self._scope_of = head
            self._scope |= {
                "http_version": head.version,
                "method": head.method,
                "path": self.root_path + head.path,
                "raw_path": self.root_path.encode("ascii") + head.raw_path,
                "query_string": head.query,
            }
        scope = {**self._scope, "headers": self.headers, "state": self.app_state.copy()}
        self.cycle = cycle = Cycle(
            scope,
            self._leave,
            self.flow,
            self.server_state.default_headers,
            expect_100_continue=head.expects_100,
            keep_alive=head.keep_alive,
            on_response=self.on_response_complete,
            notes=head.notes,
        )
        return cycle

    def on_body(self, body: bytes) -> None:
        self._framing_bytes, self._only_framing = 0, False
        self._body_begun = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrade_asked:
            return  # so the parser says, of the head alone
        self._in_body, self._completed = False, True
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
            # an answer below ASGI asks for no more, and nobody who is not read from can be seen to leave
            if self.flow.read_paused:
                self.flow.resume_reading()
        if self._soon is not None:
            self._begin_now()

    def on_response_complete(self) -> None:
        turns = self._turns
        if not turns.waiting and self._in_body and self.expect_100_continue and not self._body_begun:
            # the client may send the body that it asked about or leave it out: what comes could be either
            self.transport.close()
        self.server_state.total_requests += 1
        if self._parting is not None or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if turns.waiting:
            turns.go_on()
            return
        self._rests_since = self.loop.time()
        if self._rest_timer is None:
            self._rest_timer = self.loop.call_later(self.timeout_keep_alive, self._on_rest)

    def _on_rest(self) -> None:
        """One timer for all the rests of a connection: it looks how long this one has lasted."""
        self._rest_timer = None
        if self._rests_since is None:
            return
        left = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._rest_timer = self.loop.call_later(left, self._on_rest)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        outlet = self._turns.outlet
        if outlet is not None:
            outlet.paused()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self._limits.send_timeout, self._on_send_timeout)

    def resume_writing(self) -> None:
        self._stop_send_timer()
        super().resume_writing()
        outlet = self._turns.outlet
        if outlet is not None:
            outlet.resumed()

    def _awaits_head(self) -> bool:
        if self._parting is not None:
            return False
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def _fail(self, refusal: Refusal) -> NoReturn:
        self._refusal = refusal
        raise HttpParserError(refusal.message)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_timeout, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._awaits_head():
            return
        if self._in_head:
            self._refuse(SLOW)
        else:
            self.transport.close()

    def _on_send_timeout(self) -> None:
        self._send_timer = None
        # it would not take a goodbye either
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        self._stop_head_timer()
        if self.transport.is_closing() or self._parting is not None:
            return
        answering = self._turns.answering
        if (
            answering is not None
            and answering.response_started
            and (self._in_body or not answering.response_complete)
        ):
            # bytes of ours would be taken for part of an answer that is on its way, or for that to the next
            # request where this one has its answer and goes on with its body
            self.transport.close()
            return
        headers = [header for header in self.server_state.default_headers if header[0] == b"date"]
        if refusal is not FULL:  # that one is told before it has asked
            given = value_of(self.headers or [], b"x-request-id")
            headers.append((b"x-request-id", request_id(given, self._new_id)))
        self.transport.write(written(refusal, headers))
        if refusal is FULL or (self.cycle is not None and not self.cycle.response_complete):
            # its place is needed; or somebody would still answer what was asked before, behind the last bytes
            self.transport.close()
        else:
            self._linger()
