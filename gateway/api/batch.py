"""Records of several requests are told in one go.

Each recorder is a little code over a little data of its own. Where it is told of one request between all that
a request is otherwise, the processor's caches have lost both: that took twice as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.api.record import Recorder, RequestRecord

MOST = 16
MOST_BLOCKS = 512
"""Of their prompts. Some recorders go over each: those of a long prompt make up for being told alone, and
nobody should wait for several."""
WITHIN_S = 0.1


class Batch:
    """A recorder, in front of others that need not know at once. Whoever reads what they tell calls `flush`
    before."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders
        self._waiting: list[RequestRecord] = []
        self._blocks = 0
        self._timer: asyncio.TimerHandle | None = None

    def record(self, record: RequestRecord) -> None:
        self._waiting.append(record)
        for keys in record.keys:
            self._blocks += len(keys)
        if len(self._waiting) >= MOST or self._blocks >= MOST_BLOCKS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WITHIN_S, self._ring)

    def flush(self) -> None:
        records, self._waiting, self._blocks = self._waiting, [], 0
        for recorder in self._recorders:
            for record in records:
                recorder.record(record)

    def _ring(self) -> None:
        self._timer = None
        self.flush()


class FlushedFirst:
    """A middleware: before any of its requests, `flush`."""

    def __init__(self, app: Any, flush: Callable[[], None]) -> None:
        self._app = app
        self._flush = flush

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._flush()
        await self._app(scope, receive, send)
