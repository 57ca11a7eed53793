"""Workers that registered themselves, in Redis: one string a worker, which runs out unless it is renewed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import msgspec

from gateway.errors import ConfigError
from gateway.fleet.spec import worker_from
from gateway.fleet.worker import WorkerSpec
from gateway.store.connection import Store
from gateway.types import Clock, WorkerId

log = logging.getLogger(__name__)

LEASE_S = 8.0
"""An agent renews four times in it."""
FORGET_S = 600.0
"""How long the fleet remembers a worker whose registration ran out."""


class RegistrationState(Enum):
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""
    GONE = "gone"
    """Its agent says goodbye, or saw its engine end."""


@dataclass(frozen=True, slots=True)
class Registration:
    spec: WorkerSpec
    state: RegistrationState
    agent: str = ""
    """Who registered it, for a person: host and process."""
    about: Mapping[str, object] = field(default_factory=dict)
    """What its engine said of itself, for a person too."""

    @property
    def id(self) -> WorkerId:
        return self.spec.id


@dataclass(frozen=True, slots=True)
class Listing:
    registered: Sequence[Registration]
    lapsed: Sequence[WorkerId]
    """Remembered, but nobody renews them."""


class _Wire(msgspec.Struct, omit_defaults=True):
    """JSON, so that a person can read it with redis-cli. Unknown fields of newer agents are ignored."""

    worker: dict[str, Any]
    state: str
    agent: str = ""
    about: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_Wire)


class Registrations:
    """All calls raise StoreError. `wall` is the Unix time, in seconds; clocks may differ by minutes."""

    def __init__(self, store: Store, wall: Clock, *, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._wall = wall
        self._lease_s = lease_s

    async def put(self, registration: Registration) -> None:
        """Registers it, or renews it."""
        keys, worker = self._store.keys, registration.id
        await self._store.command("ZADD", keys.workers(), f"{self._wall() + self._lease_s:.3f}", worker)
        await self._store.command("EXPIRE", keys.workers(), int(2 * FORGET_S))
        lease_ms = int(self._lease_s * 1000)
        await self._store.command("SET", keys.registration(worker), encode(registration), "PX", lease_ms)

    async def list(self) -> Listing:
        keys = self._store.keys
        await self._store.command("ZREMRANGEBYSCORE", keys.workers(), "-inf", self._wall() - FORGET_S)
        registered: list[Registration] = []
        lapsed: list[WorkerId] = []
        for name in await self._store.command("ZRANGE", keys.workers(), 0, -1):
            worker = WorkerId(name.decode())
            data = await self._store.command("GET", keys.registration(worker))
            if data is None:
                lapsed.append(worker)
            elif (registration := decode(data)) is not None:
                registered.append(registration)
            else:
                log.warning("a registration can't be read", extra={"worker": worker})
        return Listing(registered, lapsed)


def encode(registration: Registration) -> bytes:
    spec = registration.spec
    given = {each.name: getattr(spec, each.name) for each in fields(spec)}
    given["capacity"] = given.pop("capacity_blocks")
    worker = {name: value for name, value in given.items() if value not in (None, "")}
    return msgspec.json.encode(
        _Wire(worker, registration.state.value, registration.agent, dict(registration.about))
    )


def decode(data: bytes) -> Registration | None:
    """None for what no agent of ours wrote."""
    try:
        wire = _decoder.decode(data)
        return Registration(worker_from(wire.worker), RegistrationState(wire.state), wire.agent, wire.about)
    except (msgspec.DecodeError, ValueError, ConfigError):
        return None
