"""A discovered model whose last worker left: 503 from every replica, one that starts afterwards too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.fleet.load import LoadBoard
from gateway.fleet.models_seen import ModelsSeen, Sight
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.models import SharedModels
from gateway.fleet.sharing.registrations import Registration, Registrations, RegistrationState
from gateway.fleet.worker import WorkerSpec
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole
from tests.servers import Server, cluster, standalone

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with standalone(tmp_path / "valkey") as server:
        yield server


async def ask(gateway: Whole, model: str) -> tuple[int, str]:
    async with http() as client:
        answer = await client.post(
            gateway.url + "/v1/chat/completions",
            json={"model": model, "messages": [{"role": "user", "content": "hi"}]},
        )
    return answer.status_code, answer.text


async def until(gateway: Whole, model: str, status: int) -> str:
    async with asyncio.timeout(30):
        while (told := await ask(gateway, model))[0] != status:  # noqa: ASYNC110 - Redis is polled
            await asyncio.sleep(0.02)
    return told[1]


async def test_a_worker_that_one_replica_was_given_is_503_at_the_others(server: Server) -> None:
    """What comes through admin serves there alone; its model is no stranger elsewhere."""
    shared = {"redis_url": server.url, "discovery": "redis"}
    async with (
        FaultyEngine(answers(), model="local") as engine,
        whole(**shared) as one,
        whole(**shared) as two,
    ):
        one.app.registry.add(WorkerSpec(engine.url))
        await until(one, "local", 200)
        assert "has no worker now" in await until(two, "local", 503)
        assert [w.id for w in two.app.view.workers()] == []


async def test_scaled_to_zero_is_503_from_every_replica(server: Server) -> None:
    found = {"redis_url": server.url, "discovery": "redis"}
    store = Store(parse_store_url(server.url))
    agent = Registrations(store, time.time)
    async with (
        FaultyEngine(answers(), model="found") as engine,
        whole(**found) as one,
        whole(**found) as two,
    ):
        spec = WorkerSpec(engine.url)
        await agent.put(Registration(spec, RegistrationState.READY))
        for gateway in (one, two):
            await until(gateway, "found", 200)
        # its agent says goodbye, as when the last pod is scaled away
        await agent.put(Registration(spec, RegistrationState.GONE))
        told = [await until(gateway, "found", 503) for gateway in (one, two)]
        async with whole(**found) as fresh:
            told.append(await until(fresh, "found", 503))
            missing = [await ask(gateway, "never") for gateway in (one, two, fresh)]
        assert len(set(told)) == 1
        assert "model 'found' has no worker now" in told[0]
        assert set(missing) == {missing[0]}
        assert missing[0][0] == 404
        assert "'never' does not exist; there are: found" in missing[0][1]
    await store.close()


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
async def test_what_lies_in_redis(kind: str, tmp_path: Path) -> None:
    make = standalone if kind == "standalone" else cluster
    with make(tmp_path) as there:
        store = Store(parse_store_url(there.url))
        books = []
        for replica in range(2):
            seen = ModelsSeen(lambda: 5000.0, keep_s=100.0)
            registry = Registry(LoadBoard(), lambda: 0.0, seen=seen)
            shared = SharedModels(store, seen, registry, wall=lambda: 5000.0, random=lambda: 0.5)
            seen.take({f"m{replica}": Sight("base", 4990.0 + replica)})
            books.append((seen, shared))
        await store.command("ZADD", "pgw:models", 4999, "no JSON of ours", 4000, '["stale","stale"]')
        for _, shared in (*books, books[0]):
            await shared.exchange()
        expected = {"m0": Sight("base", 4990.0), "m1": Sight("base", 4991.0)}
        assert [seen.current() for seen, _ in books] == [expected, expected]
        assert await store.command("ZRANGE", "pgw:models", 0, -1) == [
            b'["m0","base"]', b'["m1","base"]', b"no JSON of ours"
        ]  # fmt: skip
        assert 0 < await store.command("TTL", "pgw:models") <= 100
        await store.close()
