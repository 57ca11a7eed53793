"""Short questions to engines, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from gateway.errors import ConfigError, UpstreamConnectError, UpstreamProtocolError, UpstreamTimeout
from gateway.types import EngineAnswer
from gateway.upstream.client import UpstreamClient
from gateway.upstream.visitor import Visitor
from tests.faults import FaultyEngine, answers, hangs, raw

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient()
    yield client
    await client.close()


async def test_a_question_and_its_answer(client: UpstreamClient) -> None:
    ask = Visitor(client)
    async with FaultyEngine(answers(b"well", 200), answers(b"why?", 404)) as engine:
        assert await ask(engine.url + "/base/", "/health", timeout=5) == EngineAnswer(200, b"well")
        ask.authorization = b"Bearer key"
        answer = await ask(engine.url, "/tokenize", timeout=5, content=b"{}")
    assert (answer.status, answer.good, answer.body) == (404, False, b"why?")
    first, second = engine.seen
    assert (first.method, first.target, first.body) == ("GET", "/base/health", b"")
    assert (second.method, second.target, second.body) == ("POST", "/tokenize", b"{}")
    assert first.header("authorization") == []
    assert second.header("authorization") == ["Bearer key"]
    assert second.header("content-type") == ["application/json"]


async def test_the_connection_is_kept(client: UpstreamClient) -> None:
    ask = Visitor(client)
    async with FaultyEngine(answers(b"1"), answers(b"2"), answers(b"3")) as engine:
        said = [(await ask(engine.url, "/health", timeout=5)).body for _ in range(3)]
        assert (said, engine.connections, client.idle_connections) == ([b"1", b"2", b"3"], 1, 1)


async def test_what_goes_wrong_is_named(client: UpstreamClient, free_port: Callable[[], int]) -> None:
    ask = Visitor(client, max_answer=4)
    unreadable = raw(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")
    async with FaultyEngine(hangs(), answers(b"12345"), unreadable) as engine:
        with pytest.raises(UpstreamTimeout, match=r"^/health timed out after 0\.05 s$"):
            await ask(engine.url, "/health", timeout=0.05)
        with pytest.raises(UpstreamProtocolError, match=r"^/metrics: an answer of more than 4 bytes$"):
            await ask(engine.url, "/metrics", timeout=5)
        with pytest.raises(UpstreamProtocolError, match=r"^/health: .* sent "):
            await ask(engine.url, "/health", timeout=5)
    with pytest.raises(UpstreamConnectError, match="refused the connection"):
        await ask(f"http://127.0.0.1:{free_port()}", "/health", timeout=5)
    with pytest.raises(ConfigError):
        await ask("ftp://x", "/health", timeout=5)
    assert (client.open_connections, client.idle_connections) == (0, 0)
