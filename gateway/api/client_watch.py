"""Notices at once that the client has left, whatever the request is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.upstream.outlet import Outlet

Receive = Callable[[], Coroutine[Any, Any, Any]]


class ClientWatch:
    """Cancels the task that makes it when the client leaves; `gone` tells that cancellation from any other.

    Start it when the body has been read, for what `receive` brings then can only be the disconnect. A server
    also says disconnect when the answer is complete: that is nobody leaving.

    Where `receive` waits on a future, it is gone on with from that future's own callback: a task for it would
    cost every request its making, its cancelling and a turn of the loop.
    """

    def __init__(self, receive: Receive, outlet: Outlet) -> None:
        request = asyncio.current_task()
        assert request is not None  # noqa: S101 - a coroutine that runs has one
        self.gone = False
        self._stopped = False
        self._receive = receive
        self._outlet = outlet
        self._request = request
        self._coroutine = receive()
        self._go_on()

    def _go_on(self, _: object = None) -> None:
        while not self._stopped:
            try:
                waits_for = self._coroutine.send(None)
            except StopIteration as stop:
                if stop.value["type"] == "http.disconnect":
                    self._disconnected()
                    return
                self._coroutine = self._receive()
            else:
                if waits_for is None:
                    self._request.get_loop().call_soon(self._go_on)
                else:
                    waits_for.add_done_callback(self._go_on)
                return

    def _disconnected(self) -> None:
        if not self._outlet.ended:
            self.gone = True
            self._request.cancel()

    def absolve(self) -> None:
        """The cancellation has been dealt with: the task goes on as if it had not been asked for."""
        self._request.uncancel()

    def stop(self) -> None:
        self._stopped = True
        self._coroutine.close()
