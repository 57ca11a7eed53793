"""The end of a connection whose last answer is out, while its client is still sending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_MOST_BYTES = 1024 * 1024
_LONGEST_S = 1.0
"""What a client may go on to send, and how long."""


class Parting:
    """Bytes that nobody reads would make the system reset the connection, and the answer that was written be
    lost (RFC 9112, section 9.6): so what still comes is read, within bounds, and dropped."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._bytes = 0
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = loop.call_later(_LONGEST_S, transport.close)

    def drop(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            self._transport.close()

    def end(self) -> None:
        """The connection is lost."""
        self._timer.cancel()


class Leave:
    """A connection's transport as its requests have it: to close is to part."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, part: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = part
