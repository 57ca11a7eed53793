"""More work than the fleet takes, through the whole gateway: bounds, queue, shares by key, deadlines."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import httpx
import pytest

from gateway.fleet.rates import MIN_SAMPLES
from tests.faults import DONE, FaultyEngine, Turn, answers, hangs, streams, token, usage_chunk
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Gated:
    """An engine that answers one request for each `let`, and remembers whose turn it was."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._permits = asyncio.Semaphore(0)

    async def __call__(self, turn: Turn) -> None:
        user = str(turn.seen.json()["user"])
        self.order.append(user)
        await self._permits.acquire()
        await answers(json.dumps({"user": user, "choices": []}).encode())(turn)

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()


async def ask(
    client: httpx.AsyncClient, gateway: Whole, user: str, key: str | None = None, **headers: str
) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "user": user}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return await client.post(gateway.url + PATH, json=body, headers=headers)


async def waiting(gateway: Whole, count: int) -> None:
    async with asyncio.timeout(20):
        while sum(gateway.app.view.queued().values()) != count:  # noqa: ASYNC110 - the queue tells nobody
            await asyncio.sleep(0.005)


async def test_a_full_queue_and_no_queue_are_429_with_a_reason() -> None:
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_size=1) as gateway,
        http() as client,
    ):
        first = asyncio.create_task(ask(client, gateway, "first"))
        await asyncio.wait_for(one.arrived.wait(), 10)
        second = asyncio.create_task(ask(client, gateway, "second"))
        await waiting(gateway, 1)
        refused = await ask(client, gateway, "third")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        assert error["message"] == "every worker of model 'm' is full and its queue of 1 is full"
        engine.let(2)
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_size=0) as gateway,
        http() as client,
    ):
        first = asyncio.create_task(ask(client, gateway, "first"))
        await asyncio.wait_for(one.arrived.wait(), 10)
        assert (await ask(client, gateway, "second")).status_code == 429
        assert gateway.app.view.queued() == {}
        engine.let()
        assert (await first).status_code == 200


async def test_nobody_waits_longer_than_it_said_or_the_queue_allows() -> None:
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_wait=30.0) as gateway,
        http() as client,
    ):
        first = asyncio.create_task(ask(client, gateway, "first"))
        await asyncio.wait_for(one.arrived.wait(), 10)
        hasty = await ask(client, gateway, "second", **{"x-request-timeout": "0.05"})
        assert (hasty.status_code, "no place came free in time" in hasty.text) == (429, True)
        engine.let()
        assert (await first).status_code == 200


async def test_the_clients_own_deadline_ends_a_request_at_the_worker() -> None:
    async with (
        FaultyEngine(hangs(), answers(), model="m") as one,
        whole(one.url) as gateway,
        http() as client,
    ):
        late = await ask(client, gateway, "u", **{"x-request-timeout": "0.1"})
        assert late.status_code == 504
        assert "total" in late.json()["error"]["message"]
        for nonsense in ("0", "-1", "nan", "soon", "1e9"):
            answer = await ask(client, gateway, "u", **{"x-request-timeout": nonsense})
            assert answer.status_code == 200


async def test_a_clients_own_deadline_is_no_workers_fault_and_ours_is() -> None:
    for limits, headers, opened in (
        ({}, {"x-request-timeout": "0.05"}, False),
        ({"total_timeout": 0.05}, {}, True),
        ({"total_timeout": 0.05}, {"x-request-timeout": "60"}, True),
    ):
        async with (
            FaultyEngine(hangs(), model="m") as one,
            whole(one.url, breaker_failures=3, **limits) as gateway,
            http() as client,
        ):
            for _ in range(3):
                late = await ask(client, gateway, "u", **headers)
                assert late.status_code == 504
            await gateway.records(3)
            assert gateway.outcomes() == {"timeout": 3}
            assert gateway.open_breakers() == ([one.url] if opened else [])


async def test_priority_goes_first_and_service_tier_is_understood() -> None:
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_wait=60.0) as gateway,
        http() as client,
    ):
        tasks = [asyncio.create_task(ask(client, gateway, "first"))]
        await asyncio.wait_for(one.arrived.wait(), 10)
        for n, (user, priority) in enumerate([("batch", "1"), ("usual", "0"), ("urgent", "-1")]):
            tasks.append(asyncio.create_task(ask(client, gateway, user, **{"x-priority": priority})))
            await waiting(gateway, n + 1)
        body = {"model": "m", "messages": [], "user": "tier", "service_tier": "priority"}
        tasks.append(asyncio.create_task(client.post(gateway.url + PATH, json=body)))
        await waiting(gateway, 4)
        engine.let(5)
        assert [(await task).status_code for task in tasks] == [200] * 5
        assert engine.order == ["first", "urgent", "tier", "usual", "batch"]


def key_of(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    secret = f"sk-{name}-0123456789abcdef0123456789"
    return secret, {"id": name, "hash": "sha256:" + hashlib.sha256(secret.encode()).hexdigest(), **more}


async def test_a_flooding_key_delays_another_by_its_fair_share_and_no_more(tmp_path: Any) -> None:
    """One place, a key with 40 requests in the queue, then another key with 4. Equal shares: they take turns,
    so the other's four are through within its 8 next places, and not behind the 40."""
    flood, quiet, entries = (
        *[key_of(n)[0] for n in ("flood", "quiet")],
        [key_of(n)[1] for n in ("flood", "quiet")],
    )
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps(entries))
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_wait=100.0, api_keys_file=keys) as gateway,
        http() as client,
    ):
        tasks = [asyncio.create_task(ask(client, gateway, "first", flood))]
        await asyncio.wait_for(one.arrived.wait(), 10)
        tasks += [asyncio.create_task(ask(client, gateway, "flood", flood)) for _ in range(40)]
        await waiting(gateway, 40)
        tasks += [asyncio.create_task(ask(client, gateway, "quiet", quiet)) for _ in range(4)]
        await waiting(gateway, 44)
        engine.let(45)
        assert [(await task).status_code for task in tasks] == [200] * 45
        served = [n for n, user in enumerate(engine.order) if user == "quiet"]
        assert len(served) == 4
        # place 0 is the one that was being served; two requests a turn, one of each key
        assert served[-1] <= 9
        assert engine.order.count("flood") == 40


async def test_shares_are_as_the_keys_weights(tmp_path: Any) -> None:
    """Weights 3 and 1, twenty requests of each in the queue: three of four places are heavy's."""
    (heavy, one), (light, other) = key_of("heavy", weight=3), key_of("light", weight=1)
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps([one, other]))
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as worker,
        whole(worker.url, worker_max_requests=1, queue_wait=100.0, api_keys_file=keys) as gateway,
        http() as client,
    ):
        tasks = [asyncio.create_task(ask(client, gateway, "first", light))]
        await asyncio.wait_for(worker.arrived.wait(), 10)
        for user, key in (("light", light), ("heavy", heavy)):
            tasks += [asyncio.create_task(ask(client, gateway, user, key)) for _ in range(20)]
        await waiting(gateway, 40)
        engine.let(41)
        assert [(await task).status_code for task in tasks] == [200] * 41
        order = engine.order[1:]
        for turn in range(6):
            assert sorted(order[4 * turn : 4 * turn + 4]) == ["heavy", "heavy", "heavy", "light"]
        assert order[27:] == ["light"] * 13


async def test_who_waited_goes_where_it_is_best_by_then() -> None:
    """Queued while both were full; the worker that comes free and holds the prompt is the one."""
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        FaultyEngine(engine, model="m") as two,
        whole(one.url, two.url, worker_max_requests=1, queue_wait=60.0) as gateway,
        http() as client,
    ):
        first = [asyncio.create_task(ask(client, gateway, str(n))) for n in range(2)]
        async with asyncio.timeout(10):
            while len(engine.order) < 2:  # noqa: ASYNC110 - either may be the last
                await asyncio.sleep(0.005)
        waits = asyncio.create_task(ask(client, gateway, "waits"))
        await waiting(gateway, 1)
        gateway.app.registry.drain(gateway.app.registry.workers()[0].id)
        engine.let(3)
        answer = await waits
        assert answer.headers["x-gateway-worker"] == gateway.app.registry.workers()[1].id
        assert [(await task).status_code for task in first] == [200, 200]


async def test_who_leaves_the_queue_leaves_nothing(tmp_path: Any) -> None:
    engine = Gated()
    async with (
        FaultyEngine(engine, model="m") as one,
        whole(one.url, worker_max_requests=1, queue_wait=60.0) as gateway,
        http() as client,
    ):
        first = asyncio.create_task(ask(client, gateway, "first"))
        await asyncio.wait_for(one.arrived.wait(), 10)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = b'{"model":"m","messages":[]}'
        writer.write(
            b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body))
        )
        writer.write(body)
        await waiting(gateway, 1)
        writer.close()
        await waiting(gateway, 0)
        await gateway.records(1)
        assert gateway.outcomes() == {"cancelled": 1}
        engine.let()
        assert (await first).status_code == 200
        assert engine.order == ["first"]


async def test_whoever_would_be_late_is_refused_before_it_is_sent() -> None:
    quick = streams([token("a"), usage_chunk(2000, 1, 0), DONE])
    engine = Gated()
    async with (
        FaultyEngine(*[quick] * MIN_SAMPLES, engine, model="m") as one,
        whole(one.url, max_ttft=1e-6) as gateway,
        http() as client,
    ):
        # nobody is refused before the worker's speed is known, which streams show, nor where nobody waits
        for number in range(MIN_SAMPLES):
            body = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}], "stream": True}
            assert (await client.post(gateway.url + PATH, json=body)).status_code == 200
        await gateway.records(MIN_SAMPLES)
        first = asyncio.create_task(ask(client, gateway, "first"))
        async with asyncio.timeout(20):
            while not engine.order:  # noqa: ASYNC110 - the engine tells nobody of its second script
                await asyncio.sleep(0.005)
        refused = await ask(client, gateway, "second")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "is expected to give a first token within 1e-06 s" in refused.json()["error"]["message"]
        engine.let()
        assert (await first).status_code == 200
        engine.let()
        assert (await ask(client, gateway, "third")).status_code == 200
        assert engine.order == ["first", "third"]
