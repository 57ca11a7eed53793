"""The requests of one connection take turns: each is answered before the next one's application begins."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeAlias

from gateway.api.direct import DIRECT, Cycle, DirectOutlet, nobody

_MOST_AHEAD = 16
_BYTES_AHEAD = 64 * 1024
"""Requests, and bytes of them, that are read while one before them has no answer yet. Nobody who is not read
from can be seen to leave."""

_Request: TypeAlias = "asyncio.Future[Cycle | None]"
"""One to come; None where no more will."""


class Turns:
    """`tasks` are a server's, which waits for them at its end."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
        self._app = app
        self._loop = loop
        self._tasks = tasks
        self.answering: Cycle | None = None
        """The request that has its turn, or had it last."""
        self.outlet: DirectOutlet | None = None
        """Its own."""
        self.waiting: deque[Cycle] = deque()
        """Those behind it, the next one first."""
        self._ahead = 0
        """Bytes that came while others waited behind it."""
        self._idle: tuple[asyncio.Task[None], _Request] | None = None
        """The task that waits for the next request."""
        self._over = False

    def start(self, cycle: Cycle) -> None:
        """It is this one's turn."""
        self.answering = cycle
        outlet: DirectOutlet = cycle.scope[DIRECT]  # type: ignore[literal-required]
        self.outlet = outlet
        if self._idle is None:
            task = self._loop.create_task(self._run_asgi(cycle))
            task.add_done_callback(self._tasks.discard)
        else:
            task, request = self._idle
            self._idle = None
            request.set_result(cycle)
        outlet.task = task
        self._tasks.add(task)

    def go_on(self) -> None:
        """The answer before is out, and somebody waits."""
        following = self.waiting.popleft()
        if not self.waiting:
            self._ahead = 0
        self.start(following)

    def too_far_ahead(self, size: int) -> bool:
        """So many bytes more came while somebody waits: reading should pause."""
        self._ahead += size
        return self._ahead > _BYTES_AHEAD or len(self.waiting) > _MOST_AHEAD

    def end(self) -> None:
        """The connection is lost, whoever has his turn or waits."""
        self._over = True
        answering = self.answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        if self._idle is not None and not self._idle[1].done():
            self._idle[1].set_result(None)
        if self.outlet is not None:
            self.outlet.left()

    async def _run_asgi(self, cycle: Cycle) -> None:
        """One request after the other: a task is dear to make, and to forget. Where the next comes while this
        one's has its last word to say, it gets a task of its own, and one of the two stays."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one
        while True:
            try:
                result = await self._app(cycle.scope, cycle.receive, cycle.send)
            except BaseException as error:  # noqa: BLE001 - uvicorn catches the same, and it is asked
                await cycle.end(error=error)
            else:
                if result is not None or not cycle.response_complete:
                    await cycle.end(result)
            cycle.on_response = nobody  # the connection may be gone before the request is forgotten
            self._tasks.discard(task)
            if self._idle is not None or self._over:
                return
            request: _Request = self._loop.create_future()
            self._idle = task, request
            following = await request
            if following is None:
                return
            cycle = following
