"""Placements on their way to the other replicas. Filled by requests, which never wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.fleet.sharing.words import Placement
from gateway.types import BlockKey, WorkerId

MAX_KEYS = 100_000
"""Keys that may wait: more than a slow Redis makes useful, for they live only a few seconds."""


class Outbox:
    """Bounded: what comes while it is full is not told to anybody, and counted."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._waiting: list[Placement] = []
        self._keys = 0
        self._filled = asyncio.Event()
        self.dropped = 0
        """Placements that peers were never told, so far."""

    def put(self, worker: WorkerId, keys: Sequence[BlockKey]) -> None:
        if not keys:
            return
        if self._keys + len(keys) > self._max_keys:
            self.dropped += 1
            return
        self._waiting.append(Placement(worker, keys))
        self._keys += len(keys)
        self._filled.set()

    def take(self) -> list[Placement]:
        """All that waits; it is empty then."""
        taken, self._waiting, self._keys = self._waiting, [], 0
        self._filled.clear()
        return taken

    async def wait(self, seconds: float) -> None:
        """Until something waits, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._filled.wait()
        except TimeoutError:
            pass
