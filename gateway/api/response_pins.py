"""The Responses API keeps state in the engine: what continues a response, reads it or cancels it goes to the
worker that gave it.

A response's name is learned from the first bytes of its answer and kept for an hour, with Redis for every
replica. What nobody knows any more goes by load, and the engine that gets it says so.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from gateway.api.call import Call
from gateway.errors import GatewayError, InvalidRequest, NotFound, StoreError
from gateway.prompt.base import Endpoint
from gateway.store.connection import Store
from gateway.types import Clock, WorkerId

BY_NAME = "/v1/responses/*"
KEPT_S = 3600.0
MOST = 100_000
LONGEST_NAME = 256
_ASK_S = 0.25
"""What a request waits for Redis at most, where this replica does not know the response it names."""
_UNWRITTEN = 10_000

_NAME = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')
"""The first in an answer is its own: engines write it first."""
_LOOKED_AT = 4096


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """Who gave a response, under which model name it was asked for, and by which API key."""

    worker: WorkerId
    model: str
    key: str


class PinStore(Protocol):
    """Where replicas tell each other. Both raise StoreError."""

    async def put(self, name: str, pin: Pin) -> None: ...

    async def get(self, name: str) -> Pin | None: ...


def named_response(call: Call) -> str:
    """The response that a request continues, reads or cancels; empty where it stands alone."""
    if call.endpoint.name == BY_NAME:
        return call.head.target.partition(b"?")[0].decode("latin-1").split("/")[3][:LONGEST_NAME]
    if call.endpoint.prompt is not Endpoint.RESPONSES or call.fields is None:
        return ""
    name = call.fields.get("previous_response_id")
    return name if isinstance(name, str) and len(name) <= LONGEST_NAME else ""


def without_a_model(call: Call, error: InvalidRequest) -> GatewayError:
    """What to say where no model is named, and there are several: who reads a response has only its name."""
    return _not_found(named_response(call)) if call.endpoint.name == BY_NAME else error


def _not_found(name: str) -> NotFound:
    return NotFound(f"Response with id {name!r} not found.", param="response_id")


class ResponsePins:
    """Belongs to one event loop. `close` it when nobody answers any more."""

    def __init__(
        self, clock: Clock, store: PinStore | None = None, *, kept_s: float = KEPT_S, most: int = MOST
    ) -> None:
        self._clock = clock
        self._store = store
        self._kept_s = kept_s
        self._most = most
        self._pins: OrderedDict[str, tuple[Pin, float]] = OrderedDict()
        self._unwritten: deque[tuple[str, Pin]] = deque(maxlen=_UNWRITTEN)
        self._writing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._pins)

    async def find(self, name: str, key: str) -> Pin | None:
        """None where nobody knows it. Raises NotFound where another API key owns it."""
        pin = self._known(name)
        if pin is None and self._store is not None:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_ASK_S):
                    pin = await self._store.get(name)
            if pin is not None:
                self._keep(name, pin)
        if pin is not None and pin.key != key:
            raise _not_found(name)
        return pin

    def watch(self, call: Call, worker: WorkerId, key: str) -> Callable[[bytes], None] | None:
        """What to show the first bytes of an answer to; None where it is no response that an engine keeps."""
        if call.endpoint.prompt is not Endpoint.RESPONSES or call.fields is None:
            return None
        if call.fields.get("store") is False:
            return None
        pin = Pin(worker, call.prompt.model, key)
        return lambda data: self._answered(data, pin)

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _answered(self, data: bytes, pin: Pin) -> None:
        found = _NAME.search(data, 0, _LOOKED_AT)
        if found is None:
            return
        name = found[1].decode("utf-8", "replace")
        known = self._known(name)
        if known is not None and known.key != pin.key:
            return  # engines let clients choose names: none takes another's over
        self._keep(name, pin)
        if self._store is not None:
            self._unwritten.append((name, pin))
            if self._writing is None or self._writing.done():
                self._writing = asyncio.get_running_loop().create_task(self._write(self._store))

    async def _write(self, store: PinStore) -> None:
        while self._unwritten:
            name, pin = self._unwritten.popleft()
            with suppress(StoreError):  # the store says in the log that it is away; here it is known
                await store.put(name, pin)

    def _known(self, name: str) -> Pin | None:
        kept = self._pins.get(name)
        return kept[0] if kept is not None and kept[1] > self._clock() else None

    def _keep(self, name: str, pin: Pin) -> None:
        self._pins[name] = pin, self._clock() + self._kept_s
        self._pins.move_to_end(name)
        if len(self._pins) > self._most:
            self._pins.popitem(last=False)


class RedisPins:
    """One string a response, which runs out."""

    def __init__(self, store: Store, *, kept_s: float = KEPT_S) -> None:
        self._store = store
        self._kept_ms = int(kept_s * 1000)

    async def put(self, name: str, pin: Pin) -> None:
        key, value = self._store.keys.response(name), msgspec.json.encode(pin)
        # the first one owns it: engines let clients choose names
        await self._store.command("SET", key, value, "NX", "PX", self._kept_ms)

    async def get(self, name: str) -> Pin | None:
        value = await self._store.command("GET", self._store.keys.response(name), timeout=_ASK_S)
        try:
            return msgspec.json.decode(value, type=Pin) if value is not None else None
        except msgspec.DecodeError:
            return None
