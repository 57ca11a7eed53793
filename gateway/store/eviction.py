"""Does Redis throw away what it was given, or refuse what we need? Somebody may set it so at any time, and
it does not say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.errors import ConfigError, StoreError
from gateway.lasting import Lasting
from gateway.store.connection import Store

log = logging.getLogger(__name__)

INTERVAL_S = 15.0


class EvictionWatch:
    """Asks every `interval_s`, from `start` to `close`, and logs what has changed since it was last asked, by
    whomever."""

    def __init__(
        self,
        store: Store,
        *,
        random: Callable[[], float],
        interval_s: float = INTERVAL_S,
        lasting: Lasting | None = None,
    ) -> None:
        self._store = store
        self._random = random
        self._interval_s = interval_s
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._watch, "Redis' settings", lost="a Redis that evicts would not be noticed"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        before = self._store.evicts
        try:
            await self._store.check()
        except StoreError:
            return  # the store itself says in the log that it is away
        except ConfigError as error:
            if not before:
                log.error("%s", error.message, extra={"policy": self._store.evicts})
        if before and not self._store.evicts:
            log.info("Redis keeps what it is given again", extra={"redis": str(self._store.url)})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * self._random()))
            await self.look()
