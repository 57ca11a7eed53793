"""Connections of one origin that wait for their next request."""

from __future__ import annotations

import asyncio

from gateway.upstream.connection import Connection
from gateway.upstream.origin import Origin


class IdlePool:
    """Last in, first out, so that what is not needed grows old and is closed. Bounded in number and age;
    how many are busy is nobody's limit here."""

    def __init__(
        self, url: str, origin: Origin, loop: asyncio.AbstractEventLoop, *, max_idle: int, max_age: float
    ) -> None:
        self.url = url
        self.origin = origin
        self.connections = 0
        """To this origin: idle, busy, or being made."""
        self.heard_at = 0.0
        """When the last bytes came by a connection that is closed by now, on the loop's clock."""
        self._loop = loop
        self._max_idle = max_idle
        self._max_age = max_age
        self._idle: dict[Connection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def take(self) -> Connection | None:
        if not self._idle:
            return None
        connection, _ = self._idle.popitem()
        if self._loop.time() - connection.idle_since > self._max_age:
            # the youngest is too old, so all are
            connection.close()
            self.close()
            return None
        return connection

    def give(self, connection: Connection) -> None:
        if len(self._idle) >= self._max_idle:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._max_age, self._sweep)

    def discard(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._idle):
            if now - connection.idle_since < self._max_age:
                break
            connection.close()
        oldest = next(iter(self._idle), None)
        self._sweeper = (
            None
            if oldest is None
            else self._loop.call_later(oldest.idle_since + self._max_age - now, self._sweep)
        )

    def close(self) -> None:
        for connection in list(self._idle):
            connection.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
