"""Takes connections from a listening socket that several processes share, each its part of them.

The kernel wakes them all and whoever is first gets the connection: of few, long connections (a proxy's pool)
one process can have most. So one that has more than another waits a moment before it takes: the other one is
awake too, and if it is too busy to come, the connection is taken all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from gateway.processes.board import Board, others_have_room

log = logging.getLogger(__name__)

PATIENCE_S = 0.002
EXHAUSTED_S = 0.5
"""Without file descriptors, trying at once again would only burn the CPU."""
REFRESH_S = 0.1
"""Connections end without a wake-up here: so often the count is put right."""


class Acceptor:
    """`open_connections` tells how many of those that were taken are still there. From `start` to `stop`;
    `stop` closes this process's handle of the socket, the others' stay."""

    def __init__(
        self,
        sock: socket.socket,
        board: Board,
        seat: int,
        *,
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        open_connections: Callable[[], int],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._board = board
        self._seat = seat
        self._make_protocol = make_protocol
        self._context = context
        self._open = open_connections
        self._beginning: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._taking = False

    @property
    def taking(self) -> bool:
        return self._taking

    @property
    def connections(self) -> int:
        return self._open() + len(self._beginning)

    def start(self) -> None:
        self._taking = True
        self._tick()
        self._listen()

    def stop(self) -> None:
        """Connections whose handshake is under way go on."""
        if self._taking:
            self._taking = False
            if self._timer is not None:
                self._timer.cancel()
            if self._refresh is not None:
                self._refresh.cancel()
            self._loop.remove_reader(self._sock.fileno())
        self._board.leave(self._seat)
        self._sock.close()

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._on_knock)

    def _on_knock(self) -> None:
        self._board.set(self._seat, self.connections)
        if others_have_room(self._board.counts(), self._seat):
            self._rest(PATIENCE_S, self._late)
        else:
            self._take()

    def _late(self) -> None:
        self._listen()
        self._take()

    def _rest(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, then)

    def _take(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # somebody else took it, or it is gone
        except OSError as error:
            log.error("no connection can be taken", extra={"reason": error.strerror})
            self._rest(EXHAUSTED_S, self._listen)
            return
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._begin(connection), name="a connection begins")
        self._beginning.add(task)
        task.add_done_callback(self._begun)

    async def _begin(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TimeoutError):  # a handshake that failed is the client's affair
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._context)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if self._taking:
            self._board.set(self._seat, self.connections)

    def _tick(self) -> None:
        self._board.set(self._seat, self.connections)
        self._refresh = self._loop.call_later(REFRESH_S, self._tick)
