"""The bare router: what it forwards is what an engine gets and says, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.wire.bare import Client, Engines
from benchmarks.wire.engine import ANSWER, CHUNK, LAST, STREAM_HEAD, Engine, whole
from benchmarks.wire.load import http_request

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
JSON = http_request(PATH, b'{"model": "mock"}')
STREAM = http_request(PATH, b'{"stream": true}')
JSON_ANSWER = whole(ANSWER)
STREAM_ANSWER = STREAM_HEAD + 3 * CHUNK + LAST


class Heard(Engine):
    """Keeps what each connection brought."""

    def __init__(self, heard: list[Heard]) -> None:
        super().__init__(chunks=3, interval=0.001)
        self.all = bytearray()
        self.lost = asyncio.Event()
        heard.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.all += data
        super().data_received(data)


@asynccontextmanager
async def bare(heard: list[Heard], engines: int = 1) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Heard(heard), "127.0.0.1", 0) for _ in range(engines)]
    pool = Engines([server.sockets[0].getsockname()[1] for server in servers])
    front = await loop.create_server(lambda: Client(pool), "127.0.0.1", 0)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        pool.close()
        for connection in heard:
            await connection.lost.wait()
        for server in (front, *servers):
            server.close()


async def test_json_and_streams_go_over_connections_that_stay() -> None:
    heard: list[Heard] = []
    async with bare(heard) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request, answer in ((JSON, JSON_ANSWER), (STREAM, STREAM_ANSWER), (JSON, JSON_ANSWER)):
            writer.write(request)
            assert await reader.readexactly(len(answer)) == answer
        writer.close()
        await writer.wait_closed()
    assert [bytes(each.all) for each in heard] == [JSON + STREAM + JSON]


async def test_engines_take_turns() -> None:
    heard: list[Heard] = []
    async with bare(heard, engines=2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(4):
            writer.write(JSON)
            assert await reader.readexactly(len(JSON_ANSWER)) == JSON_ANSWER
        writer.close()
        await writer.wait_closed()
    assert [bytes(each.all) for each in heard] == [2 * JSON, 2 * JSON]


async def test_a_request_in_pieces_and_one_that_comes_too_soon() -> None:
    """The second waits until the first is answered: the two answers don't mix."""
    heard: list[Heard] = []
    async with bare(heard) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(STREAM[:-5])
        await writer.drain()
        assert heard == []
        writer.write(STREAM[-5:] + JSON)
        both = STREAM_ANSWER + JSON_ANSWER
        assert await reader.readexactly(len(both)) == both
        writer.close()
        await writer.wait_closed()
    assert [bytes(each.all) for each in heard] == [STREAM + JSON]


async def test_a_client_learns_that_there_is_no_engine() -> None:
    gone = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    pool = Engines([gone.sockets[0].getsockname()[1]])
    gone.close()
    await gone.wait_closed()
    front = await asyncio.get_running_loop().create_server(lambda: Client(pool), "127.0.0.1", 0)
    async with front:
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        writer.write(JSON)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
