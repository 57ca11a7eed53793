"""Verifying the index beside requests: in steps between theirs, one run at a time, for a client that is
there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar

from gateway.api.while_there import while_there
from gateway.errors import GatewayError, Overloaded, Unavailable
from gateway.index.prefix import PrefixIndex
from gateway.types import Clock

log = logging.getLogger(__name__)

STEP_S = 0.001
"""Of one turn of the event loop."""
_AGAIN_S = 5.0

T = TypeVar("T")


class Verifier:
    def __init__(
        self, index: PrefixIndex, stopping: Callable[[], bool], busy: Clock = time.thread_time
    ) -> None:
        """`stopping`: a run must not hold up a shutdown. `busy` is CPU time."""
        self._index = index
        self._stopping = stopping
        self._busy = busy
        self._one = asyncio.Lock()

    async def run(
        self, receive: Callable[[], Awaitable[Any]], work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """What comes of `work`, for the client behind `receive`. Raises Overloaded where another run is under
        way."""
        if self._one.locked():
            raise Overloaded("the index is verified already: one run at a time", retry_after=_AGAIN_S)
        async with self._one:
            return await while_there(receive, work())

    async def sound(self) -> None:
        """Returns where the index does not contradict itself; raises GatewayError, which says where it
        does."""
        try:
            with closing(self._index.inspect()) as steps:
                began = self._busy()
                for _ in steps:
                    if self._busy() - began >= STEP_S:
                        await asyncio.sleep(0)  # requests go first
                        if self._stopping():
                            raise Unavailable("shutting down")
                        began = self._busy()
        except AssertionError as error:
            log.error("the index contradicts itself", extra={"reason": str(error)})
            raise GatewayError(
                f"the index contradicts itself ({error}): restart this replica, and report it"
            ) from error
