"""Limits that all replicas keep together, in Redis: one script a request, for keys that have limits.

Buckets and the set of open requests are state with an end: a replica that dies takes its requests along when
their time is up, and a quiet key leaves nothing behind. While Redis is away, each replica counts for itself
(fail open) or refuses (fail closed), and asks again after a short while, so that no request waits for a Redis
that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.auth.keys import Limits
from gateway.auth.limits import LocalLimiter, Ticket, too_fast, too_parallel
from gateway.errors import StoreError, Unavailable
from gateway.steady import Steady
from gateway.store.scripts import Script, load_script

log = logging.getLogger(__name__)

_LIFE = 3900.0
"""Seconds after which a request counts as gone whatever its replica says: longer than any answer may take."""


class Scripts(Protocol):
    """gateway.store.connection.Store, as far as it is needed here."""

    async def script(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[bytes | str | int | float] = (),
        timeout: float | None = None,
    ) -> Any: ...


class SharedLimiter:
    def __init__(
        self,
        store: Scripts,
        local: LocalLimiter,
        names: Callable[[str], tuple[str, str]],
        *,
        clock: Callable[[], float],
        fail_open: bool,
        timeout: float = 0.25,
        pause: float = 1.0,
    ) -> None:
        """`names` gives the two Redis keys of an API key's id. `timeout`, and `pause` until a Redis that
        failed is asked again, are in seconds."""
        self._store = store
        self._local = local
        self._names = names
        self._clock = clock
        self._fail_open = fail_open
        self._timeout = timeout
        self._pause = pause
        self._away_until = 0.0
        self._steady = Steady(3 * pause)
        self._take = load_script("gateway.auth", "take")
        self._settle = load_script("gateway.auth", "settle")
        self._settling: set[asyncio.Task[None]] = set()

    async def take(self, key: str, limits: Limits, tokens: int) -> Ticket:
        """Raises RateLimited; Unavailable where it fails closed."""
        # what this replica knows itself needs no Redis: and so it goes on counting when Redis has gone
        ticket = self._local.admit(key, limits, tokens)
        try:
            await self._take_shared(ticket)
        except BaseException:
            self._local.give_back(ticket)
            raise
        return ticket

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Never waits: the rest is done behind the answer."""
        if ticket.settled:
            return
        self._local.settle(ticket, tokens)
        self._settle_behind(ticket, tokens)

    def give_back(self, ticket: Ticket) -> None:
        """It was refused after all: as if it had not been taken. Never waits either."""
        if ticket.settled:
            return
        self._local.give_back(ticket)
        self._settle_behind(ticket, 0, requests=1)

    async def close(self) -> None:
        """What has been used is told to the others."""
        await asyncio.gather(*self._settling, return_exceptions=True)

    async def _take_shared(self, ticket: Ticket) -> None:
        if self._clock() < self._away_until:
            self._alone()
            return
        limits, name = ticket.limits, secrets.token_hex(8)
        arguments: list[str | int | float] = [
            name, ticket.tokens, limits.requests_per_minute or 0, limits.tokens_per_minute or 0,
            limits.max_parallel or 0, _LIFE,
        ]  # fmt: skip
        try:
            refusal, wait = await self._store.script(
                self._take, self._names(ticket.key), arguments, timeout=self._timeout
            )
        except StoreError as error:
            self._gone(error)
            self._alone()
            return
        self._steady.there(self._clock())
        if refusal == b"parallel":
            raise too_parallel(limits.max_parallel or 0)
        if refusal:
            what = refusal.decode()
            limit = limits.requests_per_minute if what == "requests" else limits.tokens_per_minute
            raise too_fast(what, limit or 0, float(wait))
        ticket.shared = name

    def _settle_behind(self, ticket: Ticket, tokens: int, requests: int = 0) -> None:
        if ticket.shared:
            task = asyncio.get_running_loop().create_task(self._settle_shared(ticket, tokens, requests))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _settle_shared(self, ticket: Ticket, tokens: int, requests: int) -> None:
        arguments: list[str | int | float] = [
            ticket.shared,
            tokens - ticket.tokens,
            ticket.limits.tokens_per_minute or 0,
            requests,
            ticket.limits.requests_per_minute or 0,
        ]
        try:
            await self._store.script(self._settle, self._names(ticket.key), arguments, timeout=self._timeout)
        except StoreError as error:
            self._gone(error)

    def _alone(self) -> None:
        if not self._fail_open:
            raise Unavailable("limits of API keys can't be checked just now", retry_after=self._pause)

    def _gone(self, error: StoreError) -> None:
        if self._steady.gone(self._clock()):
            log.warning(
                "limits of API keys are counted by each replica alone"
                if self._fail_open
                else "requests of limited API keys are refused: their limits can't be checked",
                extra={"reason": error.message},
            )
        self._away_until = self._clock() + self._pause
