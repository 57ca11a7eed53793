"""What an agent registers: a worker that is in while its agent renews it, in the words of a worker line."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.store.connection import Store
from gateway.types import Clock, WorkerId

DEFAULT_TTL = 10.0


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """As JSON under the worker's `registration` key. Unknown fields are ignored, so that releases may mix."""

    id: WorkerId
    url: str
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    model: str | None = None
    adapters: tuple[str, ...] = ()
    block_size: int | None = None
    capacity_blocks: int | None = None
    max_requests: int | None = None
    weight: float = 1.0
    dp_rank: int | None = None
    state: str = "ready"
    """``ready`` or ``draining``."""
    followed: bool = False
    """Its agent follows its events and writes them: replicas only mirror."""


class Registrations:
    """Raises StoreError from every method."""

    def __init__(self, store: Store, *, ttl: float = DEFAULT_TTL, wall: Clock = time.time) -> None:
        """`ttl`: seconds that a registration outlives its last renewal."""
        self._store = store
        self._ttl = ttl
        self._wall = wall

    async def put(self, registration: Registration) -> None:
        """Registers, renews and changes: all the same."""
        keys, worker = self._store.keys, registration.id
        body = msgspec.json.encode(registration)
        await self._store.command("SET", keys.registration(worker), body, "PX", int(self._ttl * 1000))
        await self._store.command("ZADD", keys.workers(), self._wall() + self._ttl, worker)

    async def withdraw(self, worker: WorkerId) -> None:
        await self._store.command("ZREM", self._store.keys.workers(), worker)
        await self._store.command("DEL", self._store.keys.registration(worker))

    async def all(self) -> dict[WorkerId, Registration]:
        """Those that are in now. Ids of the dead are swept on the way."""
        keys = self._store.keys
        # a minute's grace: clocks of hosts differ, and the key itself knows best
        await self._store.command("ZREMRANGEBYSCORE", keys.workers(), "-inf", self._wall() - 60.0)
        names: list[bytes] = await self._store.command("ZRANGE", keys.workers(), 0, -1)
        found: dict[WorkerId, Registration] = {}
        for name in names:
            worker = WorkerId(name.decode())
            body: Any = await self._store.command("GET", keys.registration(worker))
            if body is not None:
                found[worker] = msgspec.json.decode(body, type=Registration)
        return found
