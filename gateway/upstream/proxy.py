"""One request to one worker: its answer is pumped to the client, and watched in passing.

Until the first byte of the body the client has been sent nothing, not even the head, so that a worker which
fails during prefill can still be replaced. After it, a stream ends with an error event; any other body is
left incomplete, and the server closes the connection, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from gateway.errors import GatewayError, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from gateway.types import Clock, Usage
from gateway.upstream.answer_reading import NOTE, STREAM, AnswerReading, answer_reading
from gateway.upstream.bodies import NO_SUCH_PATH, Body, Cleared, Passing, Unserved, Whole
from gateway.upstream.client import UpstreamClient
from gateway.upstream.headers import Headers, value_of
from gateway.upstream.lane import Lane
from gateway.upstream.outlet import Outlet
from gateway.upstream.packing import Inflater, Packed
from gateway.upstream.redact import Redactor
from gateway.upstream.sse import SseScanner
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.wire import Flow, Framing, ResponseHead, UpstreamRequest

WITHHELD = frozenset((429, 502, 503, 504, 508))
"""Answers that are kept from the client, for another worker may do better."""
MAX_WITHHELD = 64 * 1024
_MOST_MISSED = 16
"""How often in a row the short way is opened for a read that it then does not take, before it stays shut."""


class AnswerPlan(msgspec.Struct, frozen=True):
    """What to do with the answer; the same for every try of a request."""

    headers: Headers
    """Added to it."""
    readable: bool
    """It comes from a model: usage is read. Of any other, what must not leave is taken out."""
    error_event: Callable[[GatewayError], bytes]
    """How a stream that dies tells its client."""
    unserved: Callable[[], bytes]
    """What the client is told, as JSON, where the worker has no such path."""
    on_start: Callable[[bytes], None] | None = None
    """Shown the first bytes of a good answer."""
    hide_usage: bool = False
    ends_with_done: bool = True
    """A whole stream of this API ends with ``[DONE]``."""
    redactor: Redactor = msgspec.field(default_factory=lambda: Redactor(()))
    max_answer: int = 64 * 1024 * 1024
    """Bytes of an answer that has to be kept until it is whole."""


class Withheld(msgspec.Struct, frozen=True):
    """An answer that the client has not been sent."""

    status: int
    headers: Headers
    body: bytes


class Exchange:
    """One try. `run` it once, then read how it went; all attributes are valid after cancellation too."""

    status = 0
    """Of the worker's answer; 0 while there is none."""
    headers: Headers
    streamed = False
    whole = False
    """The answer came to its end."""
    error: UpstreamError | None = None
    withheld: Withheld | None = None
    first_byte_at: float | None = None
    """On the given clock: when the first piece of the answer came."""
    longest_gap = 0.0
    """Seconds between two pieces of a stream."""
    committed = False
    """The client has been sent a part of it: no other worker can take over."""
    pieces = 0
    """Events of a stream so far."""

    usage: Usage | None = None
    """Known when `run` is over."""

    _head: ResponseHead
    _reading: AnswerReading
    _body: Body = Passing()
    """Replaced when the answer's head has come."""
    _scanner: SseScanner | None = None
    """The body, where that is a stream which goes out as it is, but for whole events."""
    _lane: Lane | None = None
    """Of its usual reads. What has gone by it is noted at the next one of the others, and at the end."""
    _inflater: Inflater | None = None
    """Of a compressed stream."""
    _ended = False
    _first_pieces = 0
    _last_piece = 0.0

    def __init__(
        self, outlet: Outlet, plan: AnswerPlan, clock: Clock, on_first_byte: Callable[[], None]
    ) -> None:
        self._outlet = outlet
        self._plan = plan
        self._clock = clock
        self._on_first_byte = on_first_byte
        self.headers = []
        self._method = b""

    def __repr__(self) -> str:
        state = "whole" if self.whole else "open" if self.committed else "waiting"
        return f"<Exchange {state} status={self.status} pieces={self.pieces}>"

    @property
    def mean_gap(self) -> float | None:
        """Seconds between two pieces of a stream; pieces that came together count each."""
        count = self.pieces - self._first_pieces
        if not self.streamed or self.first_byte_at is None or not count:
            return None
        return (self._last_piece - self.first_byte_at) / count

    @property
    def stream_error(self) -> bool:
        """The worker itself reported an error inside its stream."""
        return isinstance(self._body, SseScanner) and self._body.error

    @property
    def cut(self) -> bool:
        """The client has an incomplete body: its connection must be closed."""
        return self.committed and not self._ended

    async def run(
        self,
        client: UpstreamClient,
        url: str,
        request: UpstreamRequest,
        timeouts: Timeouts,
        deadline: float,
    ) -> None:
        """Until the client has taken the whole answer, or the worker has failed (`error`). Raises ClientGone;
        cancellation closes the worker's connection at once. `deadline` is on the loop's clock."""
        self._method = request.method
        try:
            try:
                await client.exchange(url, request, self, timeouts, deadline)
                self.whole = True
            except UpstreamError as error:
                self.error = error
                if self.committed and self.streamed:
                    self._outlet.body(self._plan.error_event(error), last=True)
            finally:
                if self._lane is not None:
                    self._take_note(self._lane)
                self.usage = self._body.usage
                self._outlet.attach(None)
            if self._outlet.blocked:
                async with asyncio.timeout_at(deadline):
                    await self._outlet.drained()
            self._ended = self.whole or self.streamed
        except TimeoutError:
            self.whole = False
            self.error = UpstreamTimeout("the client took too long to take the answer", phase="total")

    # -- called by the connection -------------------------------------------------------------------------

    def on_head(self, head: ResponseHead, flow: Flow) -> None:
        self._head = head
        self._reading = head.notes.get(NOTE) or answer_reading(head)
        self.status = head.status
        self.headers = head.headers
        self._body = self._body_for(head)
        self._outlet.attach(flow)

    def on_body(self, data: bytes, last: bool) -> Lane | None:
        if self._lane is not None:
            self._take_note(self._lane)
        body = self._body
        if self._inflater is not None:
            data = self._inflater.feed(data, last)
        out = body.feed(data, last)
        pieces = body.events
        alone = pieces == self.pieces + 1
        if pieces != self.pieces:
            now = self._clock()
            if self.first_byte_at is None:
                self.first_byte_at, self._first_pieces = now, pieces
                if self.status not in WITHHELD:
                    self._on_first_byte()
            elif now - self._last_piece > self.longest_gap:
                self.longest_gap = now - self._last_piece
            self.pieces, self._last_piece = pieces, now
        if self.committed:
            self._outlet.body(out, last=last)
        elif self.status in WITHHELD:
            if last:
                self.withheld = Withheld(self.status, self._answer_headers(len(out)), out)
        elif out or last:
            if last and not body.events and self._plan.readable and self.status < 300:
                raise UpstreamProtocolError(
                    f"{self.status} with nothing in it, where an answer was asked for"
                )
            self.committed = True
            if self._plan.on_start is not None and self.status < 300:
                self._plan.on_start(out)
            self._outlet.start(self.status, self._answer_headers(len(out) if last else None))
            self._outlet.body(out, last=last)
        return self._short_way(self._scanner) if alone and self._scanner is not None and not last else None

    def _short_way(self, scanner: SseScanner) -> Lane | None:
        """For the next read, behind one with a single event."""
        shape, write = scanner.shape, self._outlet.framed
        if shape is None or write is None:
            return None
        if self._lane is None:
            self._lane = Lane(write, self._clock)
        elif self._lane.missed >= _MOST_MISSED:
            return None
        self._lane.open(*shape, self._last_piece)
        return self._lane

    def _take_note(self, lane: Lane) -> None:
        """Of what went by it."""
        if lane.pieces:
            self._body.events += lane.pieces
            self.pieces += lane.pieces
            self._last_piece = lane.last
            self.longest_gap = max(self.longest_gap, lane.longest_gap)
            lane.pieces = lane.missed = 0

    def _body_for(self, head: ResponseHead) -> Body:
        plan = self._plan
        if head.status in WITHHELD:
            return Whole(head.framing, MAX_WITHHELD, plan.redactor, read=False)
        kind, coding = self._reading.kind, self._reading.coding
        if (
            head.status == 404
            and head.framing is Framing.LENGTH
            and value_of(head.headers, b"content-length") == b"%d" % len(NO_SUCH_PATH)
        ):
            return Unserved(plan.unserved())
        if head.status >= 300 or not kind or not (plan.readable or plan.redactor.names):
            return Passing()
        if coding and not plan.redactor.names:
            return Passing()
        if kind == STREAM:
            self.streamed = True
            self._inflater = Inflater(coding, plan.max_answer) if coding else None
            scanner = SseScanner(
                hide_usage=plan.hide_usage,
                redactor=plan.redactor,
                must_say_done=plan.readable and plan.ends_with_done and head.framing is Framing.CLOSE,
                of_json=plan.readable,
            )
            self._scanner = None if coding else scanner
            return scanner
        if coding:
            return Packed(coding, plan.max_answer, plan.redactor)
        if plan.readable:
            return Whole(head.framing, plan.max_answer, plan.redactor)
        return Cleared(plan.max_answer, plan.redactor)

    def _answer_headers(self, body_length: int | None) -> Headers:
        """`body_length` where the body is known whole; otherwise the worker's own length stands, or none."""
        body = self._body
        unpacked = self._inflater is not None or (isinstance(body, Packed) and body.plain)
        headers = self._reading.passed + self._plan.headers
        if unpacked:
            headers = [header for header in headers if header[0] != b"content-encoding"]
        length: bytes | None = None
        if self._method == b"HEAD" or self._head.framing is Framing.NONE:
            if self._head.status not in (204, 304):
                length = value_of(self._head.headers, b"content-length")
        elif isinstance(body, Passing):
            if self._head.framing is Framing.LENGTH:
                length = value_of(self._head.headers, b"content-length")
        elif body_length is not None and not self.streamed:
            length = b"%d" % body_length
        if length is not None:
            headers.append((b"content-length", length))
        return headers
