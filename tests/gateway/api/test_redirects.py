"""No answer of an engine sends the gateway anywhere else: a client may follow redirects, or nobody does."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import FaultyEngine, Turn, answers, control
from tests.gateway.api.rig import http
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_goes_to_the_client_as_it_is(status: int) -> None:
    async with FaultyEngine(answers()) as elsewhere:
        script = answers(b"", status, f"location: {elsewhere.url}/latest/meta-data")
        async with FaultyEngine(script, model="m") as engine, whole(engine.url) as gateway, http() as client:
            answer = await client.post(gateway.url + "/v1/chat/completions", json=CHAT)
            assert (answer.status_code, answer.headers["location"]) == (
                status,
                f"{elsewhere.url}/latest/meta-data",
            )
        assert elsewhere.connections == 0


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/version"])
async def test_the_gateways_own_questions_follow_none(path: str) -> None:
    async with FaultyEngine(answers()) as elsewhere:
        asked = asyncio.Event()

        async def redirects(turn: Turn) -> None:
            if turn.seen.target == path:
                asked.set()
                await answers(b"", 302, f"location: {elsewhere.url}{path}")(turn)
            else:
                await control(turn.seen, "m")(turn)

        async with FaultyEngine(redirects) as engine, whole(engine.url, ready=0) as gateway:
            await asyncio.wait_for(asked.wait(), 20)
            async with asyncio.timeout(20):  # a round of questions, whatever comes of it
                while gateway.app.view.workers()[0].reason == "its engine has not answered yet":  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert elsewhere.connections == 0
