"""Notices at once that the client has left, whatever the request is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.upstream.outlet import Outlet


class ClientWatch:
    """Cancels the request's own task when the client leaves; `gone` tells that cancellation from any other.

    Start it when the body has been read, for what `receive` brings then can only be the disconnect. A server
    also says disconnect when the answer is complete: that is nobody leaving.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[Any]], outlet: Outlet, request: asyncio.Task[Any]
    ) -> None:
        self.gone = False
        self._outlet = outlet
        self._request = request
        self._task = asyncio.get_running_loop().create_task(self._watch(receive))

    async def _watch(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._outlet.ended:
            self.gone = True
            self._request.cancel()

    def absolve(self) -> None:
        """The cancellation has been dealt with: the task goes on as if it had not been asked for."""
        self._request.uncancel()

    def stop(self) -> None:
        self._task.cancel()
