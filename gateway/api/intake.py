"""Takes connections from a listening socket: each is counted from then on, and held to a bound.

A server of the event loop's own would not count what is still in its TLS handshake, and where file
descriptors run out it would reset whoever waits, without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger(__name__)

EXHAUSTED_S = 0.5
"""Without file descriptors, trying at once again would only burn the CPU: clients wait in the backlog."""
SILENCE_S = 10.0
"""Between two lines of the log about that."""
_AT_ONCE = 64
"""Connections that are taken before others have their turn."""


class Intake:
    """`max_connections` counts those in their handshake too: beyond it, one on a port with TLS is closed at
    once (a plain one is told why, by its protocol). `patience`: seconds for a handshake, and for TLS's
    goodbye. `on_exhausted` is called when there was no file descriptor to take one with."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None,
        max_connections: int,
        patience: float,
        open_connections: Callable[[], int],
        on_exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_protocol = make_protocol
        self._context = context
        self._max = max_connections
        self._patience = None if context is None else patience
        self._open = open_connections
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._spoke = -SILENCE_S

    @property
    def connections(self) -> int:
        return self._open() + len(self._beginning)

    def take(self, sock: socket.socket, begun: Callable[[], None] = lambda: None) -> bool:
        """One connection, if one waits; `begun` is called when it is open, or has failed to. Raises
        BlockingIOError where nobody waits; False where none can be taken for now."""
        try:
            connection, _ = sock.accept()
        except (InterruptedError, ConnectionError):
            return True  # it is gone
        except BlockingIOError:
            raise
        except OSError as error:
            self._exhausted(error)
            return False
        if self._context is not None and self.connections >= self._max:
            connection.close()
            return True
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._begin(connection), name="a connection begins")
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        task.add_done_callback(lambda _: begun())
        return True

    def abandon(self) -> None:
        """Ends the handshakes that are under way."""
        for task in self._beginning:
            task.cancel()

    async def _begin(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TimeoutError):  # a handshake that failed is the client's affair
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._patience,
                ssl_shutdown_timeout=self._patience,
            )

    def _exhausted(self, error: OSError) -> None:
        self._on_exhausted()
        now = self._loop.time()
        if now - self._spoke >= SILENCE_S:
            self._spoke = now
            log.warning(
                "no connection can be taken: clients wait",
                extra={"reason": error.strerror, "open": self.connections},
            )


class Gatekeeper:
    """Keeps an `Intake` at one listening socket that is this process's alone, until `stop`."""

    def __init__(self, sock: socket.socket, intake: Intake) -> None:
        self._sock = sock
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._on_knock)

    def _on_knock(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken = self._intake.take(self._sock)
            except BlockingIOError:
                return
            if not taken:
                self._loop.remove_reader(self._sock.fileno())
                self._timer = self._loop.call_later(EXHAUSTED_S, self._listen)
                return
