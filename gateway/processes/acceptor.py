"""Takes connections from a listening socket that several processes share, each its part of them.

The kernel wakes them all and whoever is first gets the connection: of few, long connections (a proxy's pool)
one process can have most. So one that has more than another waits a moment before it takes: the other one is
awake too, and if it is too busy to come, the connection is taken all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from gateway.api.intake import EXHAUSTED_S, Intake
from gateway.processes.board import Board, others_have_room

PATIENCE_S = 0.002
REFRESH_S = 0.1
"""Connections end without a wake-up here: so often the count is put right."""


class Acceptor:
    """From `start` to `stop`; `stop` closes this process's handle of the socket, the others' stay."""

    def __init__(self, sock: socket.socket, board: Board, seat: int, intake: Intake) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._board = board
        self._seat = seat
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._taking = False

    @property
    def taking(self) -> bool:
        return self._taking

    @property
    def connections(self) -> int:
        return self._intake.connections

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
        with contextlib.suppress(BlockingIOError):  # somebody else took it
            if not self._intake.take(self._sock, self._begun):
                self._rest(EXHAUSTED_S, self._listen)

    def _begun(self) -> None:
        if self._taking:
            self._board.set(self._seat, self.connections)

    def _tick(self) -> None:
        self._board.set(self._seat, self.connections)
        self._refresh = self._loop.call_later(REFRESH_S, self._tick)
