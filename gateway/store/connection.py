"""The connection to Redis: a deadline for every command, a StoreError for every failure, up or down told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gateway.errors import ConfigError, StoreError
from gateway.steady import Steady
from gateway.store.health import Health
from gateway.store.keys import Keys
from gateway.store.patience import Patience
from gateway.store.rights import RIGHTS, lacking
from gateway.store.scripts import Script
from gateway.store.url import StoreKind, StoreUrl
from gateway.types import Clock

log = logging.getLogger(__name__)

Argument: TypeAlias = bytes | str | int | float

DEFAULT_TIMEOUT = 1.0
DEFAULT_PREFIX = "pgw"
WRITES = frozenset({"SET", "HSET", "XADD", "ZADD"})
"""Commands that a Redis refuses that is read-only or full; DEL, by the latter, it does not."""
QUIET_S = 10.0
"""Between two lines in the log that say Redis is away."""
AGAIN_S = 0.25
"""From an error to the next try, at least."""


WITHOUT = "requests go on with what is known here, replicas drift apart"


class StoreObserver(Protocol):
    """Hears how it goes. Metrics live behind it."""

    def command(self, name: str, seconds: float) -> None: ...

    def failed(self, kind: str) -> None: ...


class NullStoreObserver:
    def command(self, name: str, seconds: float) -> None:
        pass

    def failed(self, kind: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StoreStatus:
    up: bool
    """It answers, and takes writes; all of it, as far as it is used."""
    reason: str
    """Why it is down, in words for a person; empty while it is up."""
    failures: int
    """Commands that failed so far."""


class Store:
    """One per process. Nothing on a request's path awaits it."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = DEFAULT_TIMEOUT,
        observer: StoreObserver | None = None,
        clock: Clock = time.monotonic,
        without: str = WITHOUT,
    ) -> None:
        """`timeout`, in seconds, is a command's deadline where the caller gives none. `without` says what
        becomes of this process while Redis is away."""
        self._without = without
        self._hushed = False
        self.url = url
        self.keys = Keys(prefix)
        self._timeout = timeout
        self._observer = observer if observer is not None else NullStoreObserver()
        self._clock = clock
        # redis-py takes as long to load as half of the gateway: only who has a Redis loads it
        from gateway.store import client

        self._client, *self._helpers = client.make_clients(url, timeout)
        self.client_errors = client.client_errors(url)
        """What `subscriber` may raise where Redis is the reason."""
        self._no_script: type[Exception] = client.NoScriptError
        self._as_ours = client.as_store_error
        self._health = Health(parts=url.kind is StoreKind.CLUSTER)
        self._reason = "not connected yet"
        self._failures = 0
        self._evicts = ""
        self._quiet_until = float("-inf")
        self._said, self._gone_at = Steady(), float("nan")
        self._one_asks = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Store {self.url}: {'up' if self._health.up else self._reason}>"

    @property
    def status(self) -> StoreStatus:
        return StoreStatus(self._health.up, "" if self._health.up else self._reason, self._failures)

    @property
    def evicts(self) -> str:
        """The policy by which it throws away what it was given, as last checked; empty where it does not."""
        return self._evicts

    async def command(self, *args: Argument, timeout: float | None = None, writes: bool | None = None) -> Any:
        """One command, keys first as Redis has them. Raises StoreError; it may have been carried out then.
        `writes`: whether a Redis that takes no writes refuses it; None: as its name says."""
        limit = self._timeout if timeout is None else timeout
        began = self._clock()
        patience = Patience(limit)
        try:
            async with patience:
                answer = await self._client.execute_command(*args)
        except self._no_script:
            raise
        except TimeoutError as error:
            late = StoreError(_no_answer(limit, patience.held_up), kind="timeout")
            raise self._failed(late, args, limit) from error
        except self.client_errors as error:
            raise self._failed(self._as_ours(error), args, limit) from error
        self._observer.command(str(args[0]), self._clock() - began)
        self._succeeded(args, args[0] in WRITES if writes is None else writes)
        return answer

    async def again(self) -> None:
        """Returns when it makes sense to try again what failed. While nothing answers, one of all who wait
        asks; then they go on one after the other, so that hundreds of them neither knock at a closed door
        nor come back in one turn of the event loop."""
        await asyncio.sleep(AGAIN_S)
        if self.url.kind is StoreKind.CLUSTER:
            return  # some of it always answers: who asks for one worker can't speak for the others
        async with self._one_asks:
            while not self._health.answers:
                try:
                    await self.command("PING")
                except StoreError:
                    await asyncio.sleep(AGAIN_S)

    async def script(
        self, script: Script, keys: Sequence[str], args: Sequence[Argument] = (), timeout: float | None = None
    ) -> Any:
        """Runs it by its digest; its text is sent where the server does not have it (yet, or any more)."""
        try:
            return await self.command(
                "EVALSHA", script.sha, len(keys), *keys, *args, timeout=timeout, writes=script.writes
            )
        except self._no_script:
            return await self.command(
                "EVAL", script.source, len(keys), *keys, *args, timeout=timeout, writes=script.writes
            )

    async def check(self) -> None:
        """Raises StoreError where it can't be reached, or does not let us write what is ours; ConfigError
        where its settings would lose data."""
        try:
            answer = await self.command("INFO", "memory")
            await self._try_rights()
        except StoreError as error:
            if error.kind == "forbidden":
                self._health.denied = True
            raise await self._sentinels_say(error) from error
        self._health.denied = False
        self._succeeded(("SET", self.keys.check()), True)
        # a cluster answers for each of several nodes; one that evicts is one too many
        infos = answer.values() if isinstance(answer, dict) and "maxmemory_policy" not in answer else [answer]
        self._evicts = ""
        for info in infos:
            policy = info.get("maxmemory_policy", "noeviction") if isinstance(info, dict) else "noeviction"
            if policy != "noeviction" and int(info.get("maxmemory", 0)):
                self._evicts = policy
                raise ConfigError(
                    f"Redis at {self.url} evicts what it was given (maxmemory-policy {policy}): "
                    "set maxmemory-policy to noeviction"
                )

    async def _try_rights(self) -> None:
        """What an ACL allows shows only when it is tried, and so does whether there is room."""
        key = self.keys.check()
        rules = lacking(await self.script(RIGHTS, [key], [key]), self.keys.prefix)
        if not rules and not await self._may_listen(key):
            rules = ["+subscribe"]
        if rules:
            user = f"the user {self.url.username}" if self.url.username else "the default user"
            error = StoreError(f"{user} lacks the rights {' '.join(rules)}", kind="forbidden")
            raise self._failed(error, ("SET", key), self._timeout)

    async def _may_listen(self, channel: str) -> bool:
        """A script can't try that. Whatever else goes wrong is for those to say who do listen."""
        subscriber = self.subscriber()
        try:
            async with Patience(self._timeout):
                await subscriber.subscribe(channel)
                await subscriber.get_message(timeout=self._timeout)
        except self.client_errors as error:  # TimeoutError is an OSError
            return self._as_ours(error).kind != "forbidden"
        finally:
            with contextlib.suppress(*self.client_errors):
                await subscriber.aclose()
        return True

    async def _sentinels_say(self, error: StoreError) -> StoreError:
        """What ails them, where none of them answers: of that the error says nothing."""
        said: StoreError | None = None
        for sentinel in self._helpers:
            try:
                async with Patience(self._timeout):
                    await sentinel.execute_command("PING")
            except self.client_errors as its:  # TimeoutError is an OSError
                said = said or self._as_ours(its)
            else:
                return error
        return said or error

    def subscriber(self) -> Any:
        """A publish/subscribe object, for the caller to close. It raises redis-py's own errors."""
        return self._client.pubsub()

    async def close(self) -> None:
        for client in (self._client, *self._helpers):
            with contextlib.suppress(*self.client_errors):  # broken connections are closed as they are
                await client.aclose()

    def _failed(self, error: StoreError, args: Sequence[Argument], limit: float) -> StoreError:
        self._failures += 1
        self._observer.failed(error.kind)
        if not self._hushed:
            self.say(error)
        # one that answers is not down for that, but may be why it never came up
        if error.kind != "refused" or self._health.since is None:
            self._reason = error.message
        self._health.failed(error.kind, _part(args), limit, self._clock())
        return error

    @contextlib.contextmanager
    def hushed(self) -> Iterator[None]:
        """What fails meanwhile is not logged: the caller says it, or ends the process for it."""
        self._hushed = True
        try:
            yield
        finally:
            self._hushed = False

    def say(self, error: StoreError) -> None:
        """In the log, unless it was said a moment ago."""
        now = self._clock()
        if self._said.gone(now):
            self._gone_at = now
        if now >= self._quiet_until:  # many commands fail while it is away
            self._quiet_until = now + QUIET_S
            log.warning(
                "Redis is degraded: %s",
                self._without,
                extra={"redis": str(self.url), "kind": error.kind, "reason": error.message},
            )

    def _succeeded(self, args: Sequence[Argument], writes: bool) -> None:
        health, said = self._health, self._said
        if health.up:
            health.answers = True
            if said.told:
                return
        now = self._clock()
        if not health.up and not health.succeeded(_part(args), writes, now):
            return
        was_away = said.told is False
        if (lasted := said.there(now)) is not None:
            self._quiet_until = float("-inf")
            away = {"degraded_s": round(now - lasted - self._gone_at, 1)} if was_away else {}
            log.info("Redis answers", extra={"redis": str(self.url), **away})


def _part(args: Sequence[Argument]) -> str:
    """The hash tag of a command's first key, or the key itself: what shares it lies on one master."""
    match args:
        case ["EVALSHA" | "EVAL", _, _, key, *_] | [_, *_, "STREAMS", key, _] | [_, key, *_]:
            _, brace, rest = str(key).partition("{")
            return rest.partition("}")[0] if brace else str(key)
        case _:
            return ""


def _no_answer(limit: float, held_up: float) -> str:
    ours = f", and this process was held up for {held_up:.2g} s beside" if held_up else ""
    return f"no answer in {limit:g} s{ours}"
