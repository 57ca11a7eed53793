"""A gateway among the workers: refused in words, unless it is said that it may be; and then no request goes
round in circles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from gateway.fleet.worker import WorkerSpec
from gateway.types import WorkerId
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http, running
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

BODY = {"model": "m", "prompt": "hello", "max_tokens": 1}
GOOD = answers(b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}')
SAYS = "this is a prefix-gateway and no engine: give the engines behind it as workers"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - states tell nobody
            await asyncio.sleep(0.01)


async def ask(gateway: Whole) -> httpx.Response:
    async with http() as client:
        return await client.post(gateway.url + "/v1/completions", json=BODY)


def worker(gateway: Whole, id: str) -> tuple[str, str]:
    found = gateway.app.registry.get(WorkerId(id))
    assert found is not None
    return found.state.value, found.reason


@pytest.mark.parametrize("itself", [True, False], ids=["itself", "another"])
async def test_a_gateway_is_no_worker(itself: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url) as one,
        whole(engine.url) as other,
    ):
        wrong = (one if itself else other).url
        one.app.registry.add(WorkerSpec(wrong))
        await until(lambda: worker(one, wrong)[1].startswith(SAYS))
        assert worker(one, wrong)[0] == "starting"
        assert "--worker-gateways" in worker(one, wrong)[1]
        said = [r for r in caplog.records if r.message == "a worker can't be used"]
        assert [(r.worker, r.levelname) for r in said] == [(wrong, "ERROR")], "once"  # type: ignore[attr-defined]
        assert (await ask(one)).status_code == 200


async def test_who_adds_one_through_admin_is_told_at_once(free_port: Callable[[], int]) -> None:
    """But not of an engine that is not there yet."""
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url) as one,
        whole(engine.url) as other,
        running(one.app.admin) as port,
        http() as client,
    ):
        workers = f"http://127.0.0.1:{port}/admin/workers"
        refused = await client.post(workers, json={"url": other.url})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(SAYS)
        assert one.app.registry.get(WorkerId(other.url)) is None
        later = await client.post(workers, json={"url": f"http://127.0.0.1:{free_port()}"})
        assert later.status_code == 201


async def test_an_admin_port_says_what_it_is_too() -> None:
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url) as one,
        running(one.app.admin) as port,
    ):
        wrong = f"http://127.0.0.1:{port}"
        one.app.registry.add(WorkerSpec(wrong))
        await until(lambda: worker(one, wrong)[1].startswith(SAYS))


async def test_a_gateway_in_front_of_another_ones_engines() -> None:
    """As ready as that one is. The engine sees the ways that a request has come."""
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url) as back,
        whole(back.url, worker_gateways=True) as front,
    ):
        answer = await ask(front)
        assert answer.status_code == 200
        assert answer.headers.get_list("x-gateway-worker") == [back.url]
        (seen,) = engine.seen
        first, second = seen.header("via")
        assert first.startswith("1.1 prefix-gateway-")
        assert second.startswith("1.1 prefix-gateway-")
        assert first != second

        back.app.drain()
        front.app._monitor.doubt(WorkerId(back.url))
        await until(lambda: worker(front, back.url) == ("unhealthy", "not ready: shutting down"))


async def test_a_request_that_comes_back_is_refused_at_once() -> None:
    """Two gateways, each a worker of the other, and the engine that made both ready takes nothing new."""
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, worker_gateways=True) as one,
        whole(one.url, worker_gateways=True) as other,
    ):
        one.app.registry.add(WorkerSpec(other.url))
        await until(lambda: worker(one, other.url)[0] == "ready")
        one.app.registry.drain(WorkerId(engine.url))
        async with asyncio.timeout(10):
            answer = await ask(other)
        assert answer.status_code == 508
        assert answer.json()["error"]["code"] == "loop_detected"
        assert "has come back to the gateway that sent it on" in answer.json()["error"]["message"]
        assert engine.seen == []
        await one.records(1)
        await other.records(2)
        assert other.outcomes() == {"upstream_error": 2}, "as it came, and as it came back"


async def test_it_goes_to_an_engine_where_there_is_one() -> None:
    """The circle costs a try, and no client sees it."""
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, worker_gateways=True, policy="round_robin") as one,
        whole(one.url, worker_gateways=True) as other,
    ):
        one.app.registry.add(WorkerSpec(other.url))
        await until(lambda: worker(one, other.url)[0] == "ready")
        for _ in range(4):
            assert (await ask(other)).status_code == 200
        await one.records(4)
        assert one.retries().keys() == {"upstream_error"}
        assert len(engine.seen) == 4
