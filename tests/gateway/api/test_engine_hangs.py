"""An engine that hangs: its checks find it, and who waits there for a first byte is asked elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.fleet.worker import WorkerSpec
from gateway.types import WorkerId
from tests.faults import SSE_HEAD, FaultyEngine, Turn, answers, chunk, control, hangs, token
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GOOD = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
QUICK: dict[str, Any] = {"health_interval": 0.05, "health_timeout": 0.1, "policy": "round_robin"}


class Hanging:
    """An engine that serves until it `hangs`, and from then on takes what comes and says nothing. A stream
    that it has begun goes on where it `talks`."""

    def __init__(self, *, talks: bool = False) -> None:
        self.hangs = False
        self._talks = talks

    async def __call__(self, turn: Turn) -> None:
        if turn.seen.method == "GET":
            await (hangs() if self.hangs else control(turn.seen, "m"))(turn)
        elif b"stream" in turn.seen.body and self._talks:
            await turn.write(SSE_HEAD)
            while not turn.closed:
                await turn.write(chunk(token("a")))
                await asyncio.sleep(0.02)
        elif self.hangs:
            await hangs()(turn)
        else:
            await answers(GOOD)(turn)


async def asked(engine: FaultyEngine, count: int) -> None:
    async with asyncio.timeout(20):
        while sum(seen.method == "POST" for seen in engine.seen) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


async def unhealthy(gateway: Whole, engine: FaultyEngine) -> None:
    """Until it is, and has failed some checks more."""
    async with asyncio.timeout(30):
        while next(w.state for w in gateway.app.view.workers() if w.id == engine.url) != "unhealthy":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        checks = sum(seen.target == "/health" for seen in engine.seen)
        while sum(seen.target == "/health" for seen in engine.seen) < checks + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_waits_there_is_another_workers_request() -> None:
    hung = Hanging()
    async with (
        FaultyEngine(hung) as one,
        FaultyEngine(answers(GOOD), model="m") as other,
        whole(one.url, other.url, **QUICK) as gateway,
        http() as client,
    ):
        hung.hangs = True
        every = await asyncio.gather(
            *(client.post(gateway.url + "/v1/chat/completions", json=CHAT, timeout=60) for _ in range(8))
        )
        assert [answer.status_code for answer in every] == [200] * 8
        assert {answer.headers["x-gateway-worker"] for answer in every} == {other.url}
        # each of those that it had was asked once here and then there
        stuck = sum(seen.method == "POST" for seen in one.seen)
        assert stuck >= 1
        assert gateway.retries() == {"timeout": stuck}


@pytest.mark.parametrize("found", [False, True], ids=["before its checks", "after them"])
async def test_so_is_what_waits_there_when_it_has_left_the_fleet(found: bool) -> None:
    hung = Hanging()
    async with (
        FaultyEngine(hung) as one,
        whole(one.url, **QUICK) as gateway,
        http() as client,
    ):
        hung.hangs = True
        answer = asyncio.ensure_future(
            client.post(gateway.url + "/v1/chat/completions", json=CHAT, timeout=60)
        )
        await asked(one, 1)
        if found:
            await unhealthy(gateway, one)
        # its agent, or an operator, takes it out
        async with FaultyEngine(answers(GOOD), model="m") as other:
            gateway.app.registry.add(WorkerSpec(other.url))
            gateway.app.registry.remove(WorkerId(one.url))
            assert (await answer).headers["x-gateway-worker"] == other.url
            assert gateway.retries() == {"timeout": 1}


async def test_alone_it_keeps_them() -> None:
    hung = Hanging()
    async with FaultyEngine(hung) as one, whole(one.url, **QUICK, first_byte_timeout=60) as gateway:
        hung.hangs = True
        async with http() as client:
            answer = asyncio.ensure_future(
                client.post(gateway.url + "/v1/chat/completions", json=CHAT, timeout=60)
            )
            await asked(one, 1)
            await unhealthy(gateway, one)
            assert not answer.done()
            answer.cancel()
        await gateway.records(1)


async def test_one_that_still_talks_to_somebody_keeps_them() -> None:
    both = [Hanging(talks=True), Hanging(talks=True)]
    async with (
        FaultyEngine(both[0]) as one,
        FaultyEngine(both[1]) as other,
        # silent is who brings nothing for three times as long as a check may take
        whole(one.url, other.url, **QUICK | {"health_timeout": 1.0}) as gateway,
        http() as client,
    ):
        path = gateway.url + "/v1/chat/completions"
        async with client.stream("POST", path, json={**CHAT, "stream": True}, timeout=60) as stream:
            slow = [one.url, other.url].index(stream.headers["x-gateway-worker"])
            engine = (one, other)[slow]
            both[slow].hangs = True
            waits = [asyncio.ensure_future(client.post(path, json=CHAT, timeout=60)) for _ in range(4)]
            # the stream, and two of the four
            await asked(engine, 3)
            await unhealthy(gateway, engine)
            assert sum(not task.done() for task in waits) == 2
            for task in waits:
                task.cancel()
        await gateway.records(5)
