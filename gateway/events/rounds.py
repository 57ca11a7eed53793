"""Events take a little of each round of the event loop, however many engines speak at once.

A message costs up to a millisecond, and those of many engines come together: applied one behind the other
they are what a request would wait for. So in one round they get half a millisecond among them, and then one
message a round in the order in which they asked, with requests in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from gateway.types import Clock

ROUND_S = 0.0005


class Rounds:
    """Shared by all that apply events in one event loop. `round_s`, by `busy`, in seconds."""

    def __init__(self, round_s: float = ROUND_S, busy: Clock = time.perf_counter) -> None:
        self._round_s = round_s
        self._busy = busy
        self._left_s = round_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = False

    async def turn(self) -> float:
        """Until there is time for a message; returns when it begins, for `spent`."""
        if self._left_s <= 0 or self._waiting:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            self._go_on()
            await future
        return self._busy()

    def spent(self, began: float) -> None:
        """What `turn` was waited for is done."""
        self._left_s -= self._busy() - began
        self._go_on()

    def _go_on(self) -> None:
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._running = False
        self._left_s = self._round_s
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # its task may have been cancelled
                future.set_result(None)
                self._go_on()
                return
