"""Watches a live fleet: every replica's metrics and admin answers, every engine's metrics, over a window."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any

import httpx
import msgspec

from gateway.diagnosis.engine_meters import model_of
from gateway.diagnosis.facts import Engine, Facts, Replica, WorkerRow, traffic_facts, worker_rows
from gateway.diagnosis.series import Scrape, Series, parse
from gateway.errors import UpstreamConnectError, UpstreamProtocolError
from gateway.logins import without_login

GATEWAY_METRICS = ("gateway_",)
ENGINE_METRICS = ("vllm:", "sglang:", "DCGM_FI_")
TIMEOUT_S = 10.0
PATIENCE_S = 2.0
"""When the window is over, who still has to answer is waited for as long again: at least this, at most
`TIMEOUT_S`."""

Progress = Callable[[float, float], None]
"""Told (seconds watched, seconds to watch) after each round."""


@dataclass(slots=True)
class Target:
    """One thing that has metrics, while it is watched."""

    url: str
    scrapes: list[Scrape] = field(default_factory=list)
    offsets: list[float] = field(default_factory=list)
    error: str = ""
    asked_at: float = 0.0
    asking: asyncio.Task[None] | None = None
    """Who is slow is not asked again meanwhile."""

    @property
    def idle(self) -> bool:
        return self.asking is None or self.asking.done()

    @property
    def offset(self) -> float | None:
        """The smallest of those measured: what a slow answer adds only makes it larger."""
        return min(self.offsets, key=abs) if self.offsets else None


async def watch(
    admin_urls: Sequence[str],
    *,
    window: float,
    interval: float,
    token: str | None = None,
    progress: Progress = lambda done, all_: None,
    admin_transport: httpx.AsyncBaseTransport | None = None,
) -> Facts:
    """Looks for `window` seconds, every `interval`; who is slow to answer holds up nobody else. The first of
    `admin_urls` must answer: raises UpstreamConnectError or UpstreamProtocolError where it does not.
    `admin_transport` carries what is asked of `admin_urls`, in place of the network: a gateway that looks at
    itself."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    # to read the certificates takes some twenty milliseconds
    trust = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
    async with (
        httpx.AsyncClient(
            trust_env=False, timeout=TIMEOUT_S, transport=admin_transport, verify=trust
        ) as admin,
        httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, verify=trust) as client,
    ):
        asker = _Asker(admin, headers)
        urls = [url.rstrip("/") for url in admin_urls]
        before = [await asker.workers(url) for url in urls]
        models = {row.url: row.model or "" for rows in before for row in rows}
        replicas = [Target(url) for url in urls]
        engines = [Target(url) for url in models]
        began = time.monotonic()
        async with _dropped_at_the_end([*replicas, *engines]) as targets:
            while True:
                now = time.monotonic()
                of_replicas = (
                    (r, _scrape(admin, r, now, GATEWAY_METRICS, headers)) for r in replicas if r.idle
                )
                of_engines = ((e, _scrape(client, e, now, ENGINE_METRICS, {})) for e in engines if e.idle)
                await begun_in_turn(chain(of_replicas, of_engines), now)
                over = now - began >= window
                pause = min(interval, window - (now - began))
                await _answered(targets, _patience(window) if over else pause)
                progress(min(now - began, window), window)
                if over:
                    break
                await asyncio.sleep(max(0.0, now + pause - time.monotonic()))
        return Facts(
            window_s=now - began,
            replicas=[
                await asker.replica(target, rows) for target, rows in zip(replicas, before, strict=True)
            ],
            engines=[_engine(target, models[target.url]) for target in engines],
        )


async def begun_in_turn(questions: Iterable[tuple[Target, Coroutine[Any, Any, None]]], now: float) -> None:
    """All at the same time, but not begun at one go: to begin a hundred would hold up a gateway that looks at
    itself."""
    for target, question in questions:
        target.asking, target.asked_at = asyncio.create_task(question), now
        await asyncio.sleep(0)


async def _answered(targets: Sequence[Target], limit: float) -> None:
    """Returns when all have answered, or after `limit` seconds."""
    asked = [target.asking for target in targets if target.asking is not None]
    done, _ = await asyncio.wait(asked, timeout=limit)
    for task in done:
        task.result()


@asynccontextmanager
async def _dropped_at_the_end(targets: Sequence[Target]) -> AsyncIterator[Sequence[Target]]:
    """Nobody is waited for any more."""
    try:
        yield targets
    finally:
        slow = [target for target in targets if not target.idle]
        for target in slow:
            target.error = f"no answer in {time.monotonic() - target.asked_at:.0f} s"
        tasks = [target.asking for target in slow if target.asking is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _patience(window: float) -> float:
    return min(TIMEOUT_S, max(PATIENCE_S, window)) if window else TIMEOUT_S


def _engine(target: Target, model: str) -> Engine:
    """A worker that was refused has no model in the gateway's eyes; its metrics name it."""
    series = Series(target.scrapes)
    return Engine(target.url, model or model_of(series), series, target.error, target.offset)


async def _scrape(
    client: httpx.AsyncClient,
    target: Target,
    at: float,
    prefixes: tuple[str, ...],
    headers: Mapping[str, str],
) -> None:
    try:
        asked = time.time()
        answer = await client.get(target.url + "/metrics", headers=dict(headers))
        offset = clock_offset(answer.headers.get("date"), asked, time.time())
    except httpx.InvalidURL:  # which repeats a piece of it
        target.error = "that is no URL"
        return
    except httpx.HTTPError as error:
        target.error = _words(error)
        return
    if offset is not None:
        target.offsets.append(offset)
    if answer.is_success:
        # a long text of a large fleet, and streams go through this loop where the gateway looks at itself
        # of the gateway's own histograms no rule asks for a quantile, and their buckets are most of it
        buckets = prefixes != GATEWAY_METRICS
        target.scrapes.append(
            await asyncio.to_thread(lambda: parse(answer.text, at, prefixes, buckets=buckets))
        )
    else:
        target.error = f"/metrics answers {answer.status_code}"


def _words(error: httpx.HTTPError) -> str:
    """A timeout has none of its own."""
    late = f"no answer in {TIMEOUT_S:g} s" if isinstance(error, httpx.TimeoutException) else ""
    return ": ".join(filter(None, (type(error).__name__, str(error) or late)))


class _Asker:
    def __init__(self, client: httpx.AsyncClient, headers: Mapping[str, str]) -> None:
        self._client = client
        self._headers = headers

    async def workers(self, url: str) -> tuple[WorkerRow, ...]:
        rows: tuple[WorkerRow, ...] = _decoded(worker_rows, await self._json(url, "/admin/workers"), url)
        return rows

    async def replica(self, target: Target, before: Sequence[WorkerRow]) -> Replica:
        url = target.url
        return Replica(
            name=without_login(url),
            series=Series(target.scrapes),
            before=before,
            after=await self.workers(url),
            policies=await self._json(url, "/admin/policy"),
            traffic=_decoded(traffic_facts, await self._json(url, "/admin/traffic"), url),
            clock_offset_s=target.offset,
        )

    async def _json(self, url: str, path: str) -> Any:
        shown = without_login(url)
        try:
            answer = await self._client.get(url + path, headers=dict(self._headers))
        except httpx.InvalidURL as error:  # which repeats a piece of it
            raise UpstreamConnectError(
                f"no gateway at {shown}: that is no URL; --admin-url takes another"
            ) from error
        except httpx.HTTPError as error:
            raise UpstreamConnectError(
                f"no gateway at {shown} ({_words(error)}); --admin-url takes another"
            ) from error
        if answer.status_code in (401, 403):
            raise UpstreamProtocolError(f"{shown}{path} answers {answer.status_code}: give the admin token")
        if not answer.is_success:
            raise UpstreamProtocolError(f"{shown}{path} answers {answer.status_code}: is it an admin port?")
        try:
            return answer.json()
        except ValueError as error:
            raise UpstreamProtocolError(f"{shown}{path} is not JSON: is it an admin port?") from error


def _decoded(read: Callable[[Any], Any], answer: Any, url: str) -> Any:
    try:
        return read(answer)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise UpstreamProtocolError(f"{without_login(url)} answers in an unknown form: {error}") from error


def clock_offset(date: str | None, asked: float, answered: float) -> float | None:
    """Seconds by which the clock behind a `Date` header is ahead of ours; 0 where it may be equal.

    The header has whole seconds and was written at some moment between `asked` and `answered`, and servers
    refresh it once a second: the true time lies in a range, and only what is outside of it is an offset.
    """
    if date is None:
        return None
    try:
        told = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None
    earliest, latest = told - answered, told + 2.0 - asked
    if earliest <= 0.0 <= latest:
        return 0.0
    return earliest if earliest > 0 else latest
