"""The HTTP/1.1 client of the hot path: one pool per worker, callbacks for the bytes, errors of our own."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial

from gateway.errors import UpstreamConnectError, UpstreamTimeout
from gateway.upstream.connection import Connection, StaleConnection
from gateway.upstream.origin import Origin
from gateway.upstream.parser import MAX_HEAD
from gateway.upstream.pool import IdlePool
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.wire import Sink, UpstreamRequest


def _unreachable(origin: Origin, what: str, why: str = "") -> UpstreamConnectError:
    return UpstreamConnectError(f"{origin} {what}{why}", told=f"the worker {what}")


class UpstreamClient:
    """Belongs to one event loop. How many requests are under way at once is not limited here: leases are.
    Nothing is kept of an origin to which no connection is open: nobody needs to say that a worker has left,
    and whoever asks it then leaves nothing behind.

    `max_idle_age` stays below the 5 s after which uvicorn, and so vLLM, drops a quiet connection.
    """

    def __init__(
        self,
        *,
        max_idle: int = 256,
        max_idle_age: float = 4.0,
        max_head: int = MAX_HEAD,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._max_idle = max_idle
        self._max_idle_age = max_idle_age
        self._max_head = max_head
        self._tls = tls
        self._pools: dict[str, IdlePool] = {}
        """By base URL. Each has a connection, or somebody who is about to make one."""
        self._open: set[Connection] = set()
        self.closed = False

    def __repr__(self) -> str:
        idle = self.idle_connections
        return f"<UpstreamClient origins={len(self._pools)} open={len(self._open)} idle={idle}>"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return sum(map(len, self._pools.values()))

    async def exchange(
        self,
        url: str,
        request: UpstreamRequest,
        sink: Sink,
        timeouts: Timeouts,
        deadline: float,
    ) -> None:
        """Send `request` to the worker at base URL `url` and give its answer to `sink`; returns when the
        answer is whole. `deadline` is on the loop's clock.

        Raises UpstreamConnectError, UpstreamTimeout or UpstreamProtocolError. When cancelled, in any phase,
        the connection is closed at once, and that is how a worker learns that nobody waits any more.
        """
        pool = self._pools.get(url)
        if pool is None:
            pool = self._new_pool(url)
        connection = pool.take()
        if connection is not None:
            try:
                fit = await connection.run(request, sink, timeouts, deadline)
            except StaleConnection:
                connection = None
        if connection is None:
            pool.connections += 1
            self._pools.setdefault(
                url, pool
            )  # it goes with its last connection, which may have been that one
            try:
                connection = await self._connect(pool, timeouts, deadline)
            except BaseException:
                self._one_less(pool)
                raise
            try:
                fit = await connection.run(request, sink, timeouts, deadline)
            except StaleConnection:
                what = "closed the connection as soon as it was open"
                raise _unreachable(pool.origin, what) from None
        if not fit:
            return
        if self.closed:
            connection.close()
        else:
            pool.give(connection)

    async def _connect(self, pool: IdlePool, timeouts: Timeouts, deadline: float) -> Connection:
        loop, origin = asyncio.get_running_loop(), pool.origin
        limit = min(timeouts.connect, deadline - loop.time())
        connection = Connection(origin, loop, partial(self._forget, pool), self._max_head)
        if origin.tls and self._tls is None:
            # reading the system's certificates takes a while: once, and only where a worker speaks TLS
            self._tls = ssl.create_default_context()
        tls = self._tls if origin.tls else None
        try:
            async with asyncio.timeout(max(0.0, limit)):
                await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except TimeoutError as error:
            phase = "connect" if limit == timeouts.connect else "total"
            # where all the time is over before it is asked, that is no word about connections
            what = "did not accept a connection in time" if limit > 0 else f"did not answer in time ({phase})"
            raise UpstreamTimeout(f"{origin} {what}", phase=phase, told=f"the worker {what}") from error
        except (OSError, ssl.CertificateError) as error:
            raise _unreachable(origin, "refused the connection", f": {error}") from error
        if not connection.closed:
            self._open.add(connection)
        return connection

    def _new_pool(self, url: str) -> IdlePool:
        pool = self._pools[url] = IdlePool(
            url,
            Origin.parse(url),
            asyncio.get_running_loop(),
            max_idle=self._max_idle,
            max_age=self._max_idle_age,
        )
        return pool

    def _forget(self, pool: IdlePool, connection: Connection) -> None:
        pool.heard_at = max(pool.heard_at, connection.heard_at())
        self._open.discard(connection)
        pool.discard(connection)
        self._one_less(pool)

    def _one_less(self, pool: IdlePool) -> None:
        pool.connections -= 1
        if not pool.connections:
            pool.close()
            if self._pools.get(pool.url) is pool:
                del self._pools[pool.url]

    def waits(self, url: str) -> bool:
        """Somebody waits at this worker for the first byte of an answer."""
        pool = self._pools.get(url)
        return pool is not None and any(c.waiting for c in self._open if c.origin is pool.origin)

    def give_up(self, url: str, why: str, silent_s: float) -> int:
        """Requests at this worker of whose answers nothing has come fail at once, and `why` is told: others
        can be asked. None does where any of its connections has brought a byte within `silent_s` seconds: who
        is only slow would have to begin anew elsewhere. Returns how many there were."""
        pool = self._pools.get(url)
        if pool is None:
            return 0
        here = [connection for connection in self._open if connection.origin is pool.origin]
        waiting = [connection for connection in here if connection.waiting]
        heard = max((pool.heard_at, *(connection.heard_at() for connection in here)))
        if not waiting or heard > asyncio.get_running_loop().time() - silent_s:
            return 0
        for connection in waiting:
            connection.give_up(why)
        return len(waiting)

    async def close(self) -> None:
        """Close every connection; answers under way fail."""
        self.closed = True
        for pool in list(self._pools.values()):
            pool.close()
        for connection in list(self._open):
            connection.close()
        # transports tell of their end in the loop's next turn
        await asyncio.sleep(0)
