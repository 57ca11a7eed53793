"""Events take their share of each round of the event loop, however many engines speak at once.

A message costs up to a millisecond, and those of many engines come together: applied one behind the other
they are what a request would wait for. So in one round they get half a millisecond among them, or half of
what the round before took where rounds are long, for under load they must not fall behind. Whoever finds it
used up goes on in a later round, in the order in which they asked, with requests in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from gateway.types import Clock

ROUND_S = 0.0005
SHARE = 0.5
MOST_S = 0.005
_MEMORY = 0.9


class Rounds:
    """Shared by all that apply events in one event loop. After a round that took long they get `share` of its
    time, and never more than `most_s`. In seconds, by `busy`."""

    def __init__(
        self,
        round_s: float = ROUND_S,
        *,
        share: float = SHARE,
        most_s: float = MOST_S,
        busy: Clock = time.perf_counter,
    ) -> None:
        self._round_s = round_s
        self._share = share
        self._most_s = most_s
        self._busy = busy
        self._left_s = round_s
        self._usual_s = round_s
        """What a message takes, the last ones weighing most."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._asked_at: float | None = None
        """When the next round was asked for; None while nobody needs one."""

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
        took_s = self._busy() - began
        self._left_s -= took_s
        self._usual_s = _MEMORY * self._usual_s + (1 - _MEMORY) * took_s
        self._go_on()

    def _go_on(self) -> None:
        if self._asked_at is None:
            self._asked_at = self._busy()
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        assert self._asked_at is not None  # noqa: S101 - it was asked for
        round_s = self._busy() - self._asked_at
        self._asked_at = None
        self._left_s = max(self._round_s, min(self._most_s, self._share * round_s))
        several = max(1, int(self._left_s / self._usual_s))
        while self._waiting and several:
            future = self._waiting.popleft()
            if not future.done():  # its task may have been cancelled
                future.set_result(None)
                several -= 1
        if self._waiting:
            self._go_on()
