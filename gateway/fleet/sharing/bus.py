"""The replicas' channel over Redis publish/subscribe: nothing is kept there, so nothing has to be cleared."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from gateway.errors import StoreError
from gateway.store.connection import Store

QUIET_S = 0.5
"""A listener that hears nothing is asked so often what it thinks of it."""

CONNECT_S = 2.0
WORD_S = 0.5
"""A word's deadline."""


class RedisBus:
    """A `Bus`. With a cluster a message reaches all nodes, whichever takes it."""

    def __init__(self, store: Store, *, quiet_s: float = QUIET_S, timeout: float = WORD_S) -> None:
        """`timeout` is a word's deadline: a late one is of no use, the next tells more."""
        self._store = store
        self._channel = store.keys.placements()
        self._quiet_s = quiet_s
        self._timeout = timeout

    async def publish(self, data: bytes) -> None:
        await self._store.command("PUBLISH", self._channel, data, timeout=self._timeout)

    async def listen(self) -> AsyncGenerator[bytes | None]:
        from gateway.store.client import as_store_error  # see `Store`

        errors = self._store.client_errors
        # a cluster's client knows which node to subscribe at once it has asked something
        await self._store.command("EXISTS", self._channel, timeout=CONNECT_S)
        subscriber = self._store.subscriber()
        try:
            async with asyncio.timeout(CONNECT_S):
                await subscriber.subscribe(self._channel)
            while True:
                message = await subscriber.get_message(ignore_subscribe_messages=True, timeout=self._quiet_s)
                yield message["data"] if message is not None else None
        except TimeoutError as error:
            raise StoreError(f"no subscription in {CONNECT_S:g} s") from error
        except errors as error:
            raise as_store_error(error) from error
        finally:
            # the connection may be broken already: what can't be said to it needs no saying
            with contextlib.suppress(StoreError, *errors):
                await subscriber.aclose()
