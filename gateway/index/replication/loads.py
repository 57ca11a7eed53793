"""A few mirrors of a process load at a time. All at once each would be done when the last one is, and what
they have read and not yet taken in would be in memory for all of them."""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.heap import trim_heap

AT_ONCE = 2
"""One reads while another is busy."""


class Loads:
    """An async context for each load."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._under_way = 0
        """Those that wait for their turn, too."""

    async def __aenter__(self) -> None:
        self._under_way += 1
        try:
            await self._turns.acquire()
        except BaseException:
            self._under_way -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.release()
        self._under_way -= 1
        if not self._under_way:
            trim_heap()
