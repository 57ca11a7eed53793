"""Gives back the memory of removed and cleared workers though nobody writes, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLICE = 4096
"""Keys a turn: a few milliseconds of the event loop."""
BUSY_S = 0.02
IDLE_S = 1.0


class Tidy:
    """Calls `collect(limit) → left to do` while there is something to do, then looks again each second.
    Needs a running loop."""

    def __init__(self, collect: Callable[[int], int]) -> None:
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._turn()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        left = self._collect(SLICE)
        self._timer = asyncio.get_running_loop().call_later(BUSY_S if left else IDLE_S, self._turn)
