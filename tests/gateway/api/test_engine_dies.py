"""An engine that dies is noticed by its hanging up, long before its next check would be due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import zmq.asyncio

from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

AN_HOUR = 3600.0
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def until(gateway: Whole, condition: Callable[[Whole], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition(gateway):  # noqa: ASYNC110 - the view tells nobody
            await asyncio.sleep(0.005)


def follows(gateway: Whole) -> bool:
    events = gateway.app.view.workers()[0].events
    return events is not None and events.state == "following"


@asynccontextmanager
async def publisher() -> AsyncIterator[tuple[zmq.asyncio.Socket, str]]:
    """A socket that publishes events, and its endpoint."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    try:
        yield socket, f"tcp://127.0.0.1:{port}"
    finally:
        socket.close(linger=0)
        context.term()


async def test_an_idle_engine_whose_events_break_off_is_checked_at_once() -> None:
    async with (
        publisher() as (events, endpoint),
        FaultyEngine(answers(), model="m") as engine,
        whole(f"{engine.url},events={endpoint}", health_interval=AN_HOUR) as gateway,
    ):
        await until(gateway, follows)
        await engine.__aexit__(None, None, None)
        events.close(linger=0)
        await until(gateway, lambda now: now.app.view.workers()[0].state == "unhealthy")
        assert "connection" in gateway.app.view.workers()[0].reason.lower()


async def test_an_engine_whose_events_alone_break_off_stays_ready() -> None:
    async with (
        publisher() as (events, endpoint),
        FaultyEngine(answers(), model="m") as engine,
        whole(f"{engine.url},events={endpoint}", health_interval=AN_HOUR) as gateway,
        http() as client,
    ):
        await until(gateway, follows)
        events.close(linger=0)
        await until(gateway, lambda now: not follows(now))
        assert (await client.post(gateway.url + "/v1/chat/completions", json=CHAT)).status_code == 200
        assert gateway.app.view.workers()[0].state == "ready"


async def test_an_engine_that_refuses_a_request_is_checked_at_once() -> None:
    async with (
        FaultyEngine(answers(), model="m") as engine,
        FaultyEngine(answers(), model="m") as other,
        whole(engine.url, other.url, health_interval=AN_HOUR) as gateway,
        http() as client,
    ):
        await engine.__aexit__(None, None, None)
        for _ in range(8):  # to one or the other: nobody is told of the one that is gone
            answer = await client.post(gateway.url + "/v1/chat/completions", json=CHAT)
            assert (answer.status_code, answer.headers["x-gateway-worker"]) == (200, other.url)
        await until(gateway, lambda now: now.app.view.workers()[0].state == "unhealthy")
        assert gateway.app.view.workers()[1].state == "ready"
