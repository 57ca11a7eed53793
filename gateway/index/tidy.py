"""Gives back the memory of removed and cleared workers though nobody writes, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.lasting import Lasting

SLICE = 1024
"""Keys a turn: a millisecond or two of the event loop."""
BUSY_S = 0.005
IDLE_S = 1.0


class Tidy:
    """Calls `collect(limit) → left to do` while there is something to do, then looks again each second.
    Needs a running loop."""

    def __init__(self, collect: Callable[[int], int], lasting: Lasting | None = None) -> None:
        self._collect = collect
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._run, "tidy", lost="memory of workers that have left is not given back"
        )

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            left = self._collect(SLICE)
            await asyncio.sleep(BUSY_S if left else IDLE_S)
