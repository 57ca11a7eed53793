"""Limits that replicas keep together, on a real server; figures worked out by hand."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.auth.keys import Limits
from gateway.auth.limits import LocalLimiter, Ticket
from gateway.auth.shared_limits import SharedLimiter
from gateway.errors import RateLimited, Unavailable
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.servers import Server, server_binaries, standalone

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=server_binaries(), ids=os.path.basename)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis"), binary=request.param) as running:
        yield running


@asynccontextmanager
async def replicas(
    server: Server, count: int = 2, *, fail_open: bool = True, pause: float = 1.0, timeout: float = 10.0
) -> AsyncIterator[list[SharedLimiter]]:
    stores = [Store(parse_store_url(server.url)) for _ in range(count)]
    yield [
        SharedLimiter(
            store, LocalLimiter(time.monotonic), store.keys.limits, clock=time.monotonic,
            fail_open=fail_open, pause=pause, timeout=timeout,
        )
        for store in stores
    ]  # fmt: skip
    for store in stores:
        await store.close()


async def refused(limiter: SharedLimiter, key: str, limits: Limits, tokens: int = 0) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await limiter.take(key, limits, tokens)
    return caught.value


async def over(limiter: SharedLimiter, ticket: Ticket, tokens: int) -> None:
    limiter.settle(ticket, tokens)
    await limiter.close()


async def test_requests_a_minute_are_counted_together(server: Server) -> None:
    limits = Limits(requests_per_minute=3)
    async with replicas(server) as (one, other):
        for limiter in (one, other, one):
            await limiter.take("rpm", limits, 0)
        for limiter in (one, other):
            error = await refused(limiter, "rpm", limits)
            assert error.retry_after is not None
            assert 0 < error.retry_after <= 20  # one each 20 s
            assert "3 requests a minute" in error.message


async def test_tokens_are_put_right_for_all(server: Server) -> None:
    limits = Limits(tokens_per_minute=600)
    async with replicas(server) as (one, other):
        ticket = await one.take("tpm", limits, 100)
        await over(one, ticket, 1500)  # 900 in debt
        error = await refused(other, "tpm", limits)
        assert error.retry_after is not None
        assert 80 < error.retry_after <= 90  # at 10 a second
        with server.client() as redis:
            assert redis.ttl("pgw:{key:tpm}:limits") >= 150  # as long as the debt


async def test_parallel_requests_are_counted_together_and_freed(server: Server) -> None:
    limits = Limits(max_parallel=2)
    async with replicas(server) as (one, other):
        first, _ = await one.take("par", limits, 0), await other.take("par", limits, 0)
        for limiter in (one, other):
            assert "2 requests under way" in (await refused(limiter, "par", limits)).message
        await over(one, first, 0)
        await over(one, first, 0)  # twice frees once
        await other.take("par", limits, 0)
        await refused(one, "par", limits)


async def test_what_a_dead_replica_had_open_ends_with_its_time(server: Server) -> None:
    limits = Limits(max_parallel=1)
    async with replicas(server) as (one, other):
        await one.take("dead", limits, 0)
        await refused(other, "dead", limits)
        with server.client() as redis:  # its time is up
            (member,) = redis.zrange("pgw:{key:dead}:open", 0, -1)
            redis.zadd("pgw:{key:dead}:open", {member: time.time() - 1})
        await other.take("dead", limits, 0)


async def test_a_refusal_takes_nothing_here_or_there(server: Server) -> None:
    limits = Limits(requests_per_minute=60, max_parallel=1)
    async with replicas(server) as (one, other):
        held = await other.take("none", limits, 0)
        for _ in range(100):
            await refused(one, "none", limits)
        await over(other, held, 0)
        await one.take("none", limits, 0)


async def test_what_is_given_back_is_there_for_all(server: Server) -> None:
    limits = Limits(requests_per_minute=2, tokens_per_minute=600, max_parallel=1)
    async with replicas(server) as (one, other):
        for limiter in (one, other, one, other):
            ticket = await limiter.take("back", limits, 400)
            limiter.give_back(ticket)
            limiter.give_back(ticket)  # twice gives back once
            await limiter.close()
        for limiter in (one, other):
            await over(limiter, await limiter.take("back", limits, 0), 0)
        assert "2 requests a minute" in (await refused(one, "back", limits)).message


async def test_without_redis_it_fails_open_and_each_counts_for_itself(server: Server) -> None:
    limits = Limits(requests_per_minute=2)
    async with replicas(server, pause=0.05, timeout=0.3) as (one, other):
        await one.take("open", limits, 0)
        server.pause()
        try:
            for limiter, left in ((one, 1), (other, 2)):
                for _ in range(left):
                    await limiter.take("open", limits, 0)
                await refused(limiter, "open", limits)
        finally:
            server.resume()


async def test_without_redis_it_fails_closed_where_that_was_asked_for(server: Server) -> None:
    limits = Limits(requests_per_minute=1000)
    async with replicas(server, fail_open=False, pause=0.05, timeout=0.3) as (one, _):
        await one.take("closed", limits, 0)
        server.pause()
        try:
            for _ in range(3):
                with pytest.raises(Unavailable) as caught:
                    await one.take("closed", limits, 0)
                assert (caught.value.status, caught.value.retry_after) == (503, 0.05)
        finally:
            server.resume()
        while True:  # it comes back by itself
            try:
                await one.take("closed", limits, 0)
                break
            except Unavailable:
                await asyncio.sleep(0.02)


async def test_a_redis_that_hangs_costs_one_request_its_deadline_and_the_next_nothing(server: Server) -> None:
    limits = Limits(requests_per_minute=1000)
    async with replicas(server, 1, pause=60, timeout=0.3) as (one,):
        asked: list[str] = []
        honest = one._store.script

        async def counted(*args: object, **more: object) -> object:
            asked.append("asked")
            return await honest(*args, **more)  # type: ignore[arg-type]

        one._store.script = counted  # type: ignore[method-assign]
        server.pause()
        try:
            for _ in range(5):
                await one.take("hang", limits, 0)
        finally:
            server.resume()
        assert asked == ["asked"]
