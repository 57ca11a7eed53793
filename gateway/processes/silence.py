"""Whether a process still says something. It does so every second: one that hangs is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

LOOK_S = 0.25
"""How soon something is noticed that nobody tells."""
QUIET_S = 2.0
"""Without a word; from then on others are asked."""

T = TypeVar("T")


class Silence:
    """Looks are counted, not seconds: a machine that slept is not a process that hangs."""

    def __init__(self) -> None:
        self._looks = 0

    @property
    def seconds(self) -> float:
        """Since its last word."""
        return self._looks * LOOK_S

    @property
    def quiet(self) -> bool:
        return self.seconds >= QUIET_S

    def look(self) -> None:
        self._looks += 1

    def broken(self) -> None:
        self._looks = 0

    async def outlast(self, asking: Coroutine[Any, Any, T]) -> T:
        """What comes of `asking`, for as long as the process says something; where it was quiet before, for
        QUIET_S. Raises TimeoutError."""
        task = asyncio.ensure_future(asking)
        waited = 0.0
        try:
            while not (await asyncio.wait((task,), timeout=LOOK_S))[0]:
                waited += LOOK_S
                if self.quiet and waited >= QUIET_S:
                    raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
