"""One HTTP/1.1 connection to a worker: bytes in, callbacks out, one exchange at a time.

Nothing here waits but `run`, and that on a single future: each read is parsed and given to the sink inside
the transport's own callback, so a chunk costs no task and no wake-up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from gateway.errors import UpstreamConnectError, UpstreamGivenUp, UpstreamProtocolError, UpstreamTimeout
from gateway.upstream.lane import Lane
from gateway.upstream.origin import Origin
from gateway.upstream.parser import MAX_HEAD, AnswerParser
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.wire import Sink, UpstreamRequest

_ONE_WRITE = 64 * 1024
# the loop's clock may tick coarsely: a timer is set a hair later than its limit, never to fire before it
_TICK = 0.001


class StaleConnection(Exception):
    """A kept connection ended before a byte of the answer. The worker closed it while our request was on its
    way, which says nothing about the worker; the client tries once more on a fresh one."""


class Connection(asyncio.Protocol):
    """Idle (in the pool, or just made), busy (inside `run`) or closed."""

    def __init__(
        self,
        origin: Origin,
        loop: asyncio.AbstractEventLoop,
        on_closed: Callable[[Connection], None],
        max_head: int = MAX_HEAD,
    ) -> None:
        self.origin = origin
        self.served = 0
        self.closed = False
        self.idle_since = 0.0
        self._loop = loop
        self._on_closed = on_closed
        self._parser = AnswerParser(max_head)
        self._transport: asyncio.Transport
        self._done: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._lane: Lane | None = None
        """Takes the next read, if it will."""
        self._head_given = False
        self._body_begun = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0
        self._heard_at = 0.0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if self._done is None else "busy"
        paused = " paused" if self._paused else ""
        return f"<Connection {self.origin} {state}{paused} served={self.served}>"

    # -- one exchange -------------------------------------------------------------------------------------

    async def run(self, request: UpstreamRequest, sink: Sink, timeouts: Timeouts, deadline: float) -> bool:
        """Send `request`, give the answer to `sink`, return when it is whole: True where the connection may
        serve again. `deadline` is on the loop's clock. Raises UpstreamError, StaleConnection or what the sink
        raised; cancellation closes the connection at once."""
        if self.closed or self._transport.is_closing():
            raise StaleConnection
        self._parser.begin(request.method)
        self._sink = sink
        self._head_given = self._body_begun = False
        self._timeouts, self._deadline = timeouts, deadline
        head, body = request.head(self.origin), request.body
        if len(body) <= _ONE_WRITE:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        self._done = self._loop.create_future()
        self._last_read = now = self._loop.time()
        self._first_byte_due = now + (timeouts.first_byte if request.streamed else timeouts.whole_answer)
        due = min(self._first_byte_due, deadline, now + timeouts.idle)
        if self._timer is None or self._rings > due:
            self._expect(due)
        try:
            await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = self._sink = self._lane = None
        self.served += 1
        return self._settle()

    def _settle(self) -> bool:
        """After a whole answer: fit to serve again, or closed."""
        transport = self._transport
        if (
            self.closed
            or not self._parser.reusable
            or transport.is_closing()
            or transport.get_write_buffer_size() > 0
        ):
            self.close()
            return False
        if self._paused:
            self.resume()
        return True

    def _gone(self) -> bool:
        # a transport closes a turn of the loop before it says so, and must not be touched any more
        return self.closed or self._transport.is_closing()

    def close(self) -> None:
        """At once; what is under way fails."""
        if not self.closed:
            self.closed = True
            self._lane = None
            self._transport.abort()
            self._tell_end()

    def _tell_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_closed(self)

    @property
    def waiting(self) -> bool:
        """A request was sent, and nothing has come of an answer's body."""
        return self._done is not None and not self._done.done() and not self._body_begun

    def heard_at(self) -> float:
        """When the last bytes came, on the loop's clock; 0 before any."""
        if self._lane is not None:
            return self._heard(self._loop.time(), self._lane)
        return self._heard_at

    def give_up(self, why: str) -> None:
        """Its request waits no longer for an answer that has not begun."""
        what = f"did not answer in time ({why})"
        self._fail(UpstreamGivenUp(f"{self.origin} {what}", told=f"the worker {what}"))

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    # -- backpressure -------------------------------------------------------------------------------------

    def pause(self) -> None:
        if not self._paused and not self._gone():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._lane is not None:
            # its client may not be there any more
            self._last_read = self._heard_at = self._heard(self._loop.time(), self._lane)
            self._lane = None
        if self._paused and not self._gone():
            self._paused = False
            self._last_read = self._loop.time()
            self._transport.resume_reading()

    # -- time ---------------------------------------------------------------------------------------------

    def _expect(self, due: float) -> None:
        """One timer for all limits of all requests: where it rings early enough, it is left as it is, and
        looks how much is left when it does."""
        if self._timer is not None:
            if self._rings <= due:
                return
            self._timer.cancel()
        self._rings = due
        self._timer = self._loop.call_at(due + _TICK, self._watch_time)

    def _watch_time(self) -> None:
        self._timer = None
        if self._done is None:
            return
        now = self._loop.time()
        if not self._body_begun:
            phase, due = "first_byte", self._first_byte_due
        else:
            # while the client is the slow one, the worker is not late
            heard = self._last_read if self._lane is None else self._heard(now, self._lane)
            phase, due = "idle", (now if self._paused else heard) + self._timeouts.idle
        if self._deadline < due:
            phase, due = "total", self._deadline
        if now < due:
            # the first byte may come long before its limit, and the idle limit holds from then on
            self._expect(min(due, now + self._timeouts.idle))
        else:
            what = f"did not answer in time ({phase})"
            self._fail(UpstreamTimeout(f"{self.origin} {what}", phase=phase, told=f"the worker {what}"))

    def _heard(self, now: float, lane: Lane) -> float:
        """When the last bytes came. The clock of `lane` may be another: it tells a time that has passed."""
        return max(self._last_read, now - lane.silent_s())

    # -- from the transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        lane = self._lane
        if lane is not None:
            try:
                if lane.takes(data):
                    return
            except Exception as error:  # noqa: BLE001 - as in `_deliver`
                self._fail(error)
                return
            self._lane = None
        done = self._done
        if done is None or done.done():
            # bytes that nobody asked for: the next answer on this connection could not be trusted
            self.close()
            return
        self._last_read = self._heard_at = self._loop.time()
        parser = self._parser
        data = parser.feed(data)
        if data and self._body_begun and self._sink is not None:
            try:
                lane = self._sink.on_body(data, parser.complete)
            except Exception as error:  # noqa: BLE001 - as in `_deliver`, without a call for each chunk
                self._fail(error)
            else:
                if lane is not None and parser.between_chunks:
                    self._lane = lane
        elif data or parser.complete or not self._head_given:
            self._deliver(data)
        if parser.error is not None:
            self._fail(self._unreadable(f"sent {parser.error}"))
        elif parser.complete and not done.done():
            done.set_result(None)

    def _deliver(self, data: bytes) -> None:
        parser, sink = self._parser, self._sink
        if parser.head is None or sink is None:
            return
        try:
            if not self._head_given:
                self._head_given = True
                sink.on_head(parser.head, self)
            if data or parser.complete:
                self._body_begun = True
                sink.on_body(data, parser.complete)
        except Exception as error:  # noqa: BLE001 - the sink's failure belongs to whoever awaits `run`
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._tell_end()
        done = self._done
        if done is None or done.done():
            return
        parser = self._parser
        if exc is None:
            parser.end()
        if parser.complete:
            self._deliver(b"")
            if not done.done():
                done.set_result(None)
        elif parser.received:
            done.set_exception(self._unreadable("closed the connection inside an answer"))
        elif self.served:
            done.set_exception(StaleConnection())
        else:
            what = "closed the connection without an answer"
            done.set_exception(UpstreamConnectError(f"{self.origin} {what}", told=f"the worker {what}"))

    def _unreadable(self, what: str) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"{self.origin} {what}", told=f"the worker {what}")
