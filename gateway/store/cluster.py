"""redis-py's client of a cluster, sparing the event loop while a part of the cluster is away.

It learns the layout anew with every command that fails: who has each of 16,384 slots, and all commands that
the server knows, 12 ms of the event loop in two pieces. With one master lost, that is many times a second,
for as long as it is away, and each time every request waits.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis._parsers import AsyncCommandsParser
from redis.asyncio.cluster import RedisCluster

HEADLESS_ERRORS = (AttributeError, LookupError, TypeError)
"""What it runs into where it has no node to ask: no default node, no owner of a slot, no primary in the
layout that it was told."""
RELEARN_S = 1.0
"""A layout is believed so long, at least, also by those whose node does not answer."""


class _LearnedOnce(AsyncCommandsParser):
    """Where keys stand in a command does not change while a process lives."""

    async def initialize(self, node: Any = None) -> None:
        if not self.commands:
            await super().initialize(node)


class SparingCluster(RedisCluster):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands_parser = _LearnedOnce()
        self._learned_at = float("-inf")

    async def initialize(self, *args: Any, **named: Any) -> SparingCluster:
        """Learns the layout where it is not known, or in doubt for long enough."""
        if self._initialize:
            if self._learned_at + RELEARN_S > time.monotonic():
                self._initialize = False  # who asks for the lost node hears that it is lost
                return self
            await super().initialize(*args, **named)
            self._learned_at = time.monotonic()
        return self

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Where it has no node to ask, the layout is in doubt; redis-py would stay with it for good."""
        try:
            return await super().execute_command(*args, **options)
        except HEADLESS_ERRORS:
            self._initialize = True
            raise

    async def aclose(self) -> None:
        """Also where the layout is in doubt, redis-py then leaves its connections open; and what it has begun
        to close in the background is waited for."""
        await super().aclose()
        manager = self.nodes_manager
        await manager.aclose()
        await manager.aclose("startup_nodes")
        nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
        closing = [task for node in nodes for task in node._background_tasks]
        await asyncio.gather(*manager._background_tasks, *closing, return_exceptions=True)
