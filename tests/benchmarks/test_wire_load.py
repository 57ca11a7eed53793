from __future__ import annotations

import asyncio

import pytest

from benchmarks.wire.engine import CHUNK, LAST, STREAM_HEAD, Engine
from benchmarks.wire.load import http_request, run, saturate

pytestmark = pytest.mark.anyio


class Counted(Engine):
    """Counts the requests of each connection."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(chunks=1, interval=0.0)
        self._counts, self._place = counts, len(counts)
        counts.append(0)

    def _answer(self, head: bytes, body: bytes) -> None:
        self._counts[self._place] += 1
        super()._answer(head, body)


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_fresh_connection_asks_once(fresh: bool) -> None:
    counts: list[int] = []
    server = await asyncio.get_running_loop().create_server(lambda: Counted(counts), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        request = http_request("/v1/chat/completions", b"{}")
        rate = await saturate(port, [request], connections=2, seconds=0.2, fresh=fresh)
    assert rate > 0
    if fresh:
        assert max(counts) == 1
        assert len(counts) >= sum(counts) >= 2
    else:
        assert len(counts) == 2


class Hesitant(asyncio.Protocol):
    """Sends its head at once, the rest 50 ms later."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(STREAM_HEAD)
        asyncio.get_running_loop().call_later(0.05, self._transport.write, CHUNK + LAST)


async def test_the_first_byte_is_one_of_the_body() -> None:
    server = await asyncio.get_running_loop().create_server(Hesitant, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        request = http_request("/v1/chat/completions", b"{}")
        result = await run(port, [request], rate=50, seconds=0.1)
    assert result.failed == 0
    assert min(result.first_byte) >= 0.05
