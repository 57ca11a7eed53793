"""Which models the fleet has served, through Redis: also a replica that starts later knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from gateway.errors import StoreError
from gateway.fleet.models_seen import MOST, ModelsSeen, Sight
from gateway.fleet.registry import Registry
from gateway.lasting import Lasting
from gateway.store.connection import Store
from gateway.types import Clock

INTERVAL_S = 1.0
"""So long a model that another replica serves may be unknown here, and 404."""

_decoder = msgspec.json.Decoder(tuple[str, str])


class SharedModels:
    """Tells and asks every `interval_s`, from `start` to `close`. Without Redis each knows its own."""

    def __init__(
        self,
        store: Store,
        seen: ModelsSeen,
        registry: Registry,
        *,
        wall: Clock,
        random: Callable[[], float],
        interval_s: float = INTERVAL_S,
        lasting: Lasting | None = None,
    ) -> None:
        self._store = store
        self._seen = seen
        self._registry = registry
        self._wall = wall
        self._random = random
        self._interval_s = interval_s
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not self._seen.keep_s:
            return
        self._task = self._lasting.begin(
            self._follow, "models in Redis", lost="models that other replicas have served are not known here"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def exchange(self) -> None:
        """Raises StoreError."""
        key, keep_s = self._store.keys.models(), self._seen.keep_s
        self._seen.see(self._registry.workers())
        said: list[str | float] = []
        for name, sight in self._seen.current().items():
            said += [f"{sight.at:.3f}", msgspec.json.encode((name, sight.base)).decode()]
        if said:
            await self._store.command("ZADD", key, "GT", *said)
        await self._store.command("ZREMRANGEBYSCORE", key, "-inf", self._wall() - keep_s)
        await self._store.command("ZREMRANGEBYRANK", key, 0, -MOST - 1)
        await self._store.command("EXPIRE", key, max(1, int(keep_s)))
        rows = await self._store.command("ZRANGE", key, 0, -1, "WITHSCORES")
        self._seen.take(_sights(rows))

    async def _follow(self) -> None:
        while True:
            with suppress(StoreError):  # the store itself says in the log that it is away
                await self.exchange()
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * self._random()))


def _sights(rows: list[object]) -> dict[str, Sight]:
    """Members and scores, in pairs or one after the other; what no replica of ours wrote is left out."""
    flat = [part for row in rows for part in (row if isinstance(row, list | tuple) else (row,))]
    found: dict[str, Sight] = {}
    for member, score in zip(flat[::2], flat[1::2], strict=True):
        try:
            name, base = _decoder.decode(member)
            found[name] = Sight(base, float(score))
        except (msgspec.DecodeError, TypeError, ValueError):
            continue
    return found
