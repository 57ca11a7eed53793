"""A deadline that counts the time in which the event loop turned.

A loop that was held up fires its timers before it reads its sockets: an answer that has been here for long
would be taken for one that does not come, and Redis for away, whenever this process itself was slow.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

STRIDES = 5
"""Parts of the limit, each with a timer of its own; that one fires late says that the loop was held up."""
LATE_S = 0.005
"""Later than this is held up: a loop with some work to do."""


class Patience:
    """``async with Patience(seconds):`` as `asyncio.timeout`. A stride that ends late counts as one all the
    same, and behind a late last one comes another, in which the loop looks at its sockets: at most `STRIDES`
    of those, so that an end is certain. Read `held_up` when it is over."""

    def __init__(self, seconds: float) -> None:
        self.held_up = 0.0
        """Seconds that the loop was late, all strides together."""
        self._stride = seconds / STRIDES
        self._left = STRIDES
        self._more = STRIDES
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._timeout.__aenter__()
        self._begin_stride()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _begin_stride(self) -> None:
        self._due = self._loop.time() + self._stride
        self._timer = self._loop.call_at(self._due, self._end_stride)

    def _end_stride(self) -> None:
        now = self._loop.time()
        late = now - self._due
        self._left -= 1
        if late > LATE_S:
            self.held_up += late
            if self._left == 0 and self._more > 0:
                self._more -= 1
                self._left = 1
        if self._left > 0:
            self._begin_stride()
        else:
            self._timeout.reschedule(now)
