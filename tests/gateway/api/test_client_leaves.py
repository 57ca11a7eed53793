"""A client that leaves frees its worker at once, whatever was going on."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

from gateway.routing.route import Outcome
from tests.faults import SSE_HEAD as SSE_HEAD
from tests.faults import FaultyEngine, Script, Turn, answers, hangs, raw, streams_for_ever, token
from tests.gateway.api.rig import serving

pytestmark = pytest.mark.anyio


def request(*, stream: bool, says: str = "hi") -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": says}], "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    ("script", "stream", "after_bytes"),
    [
        (hangs(), True, False),
        (hangs(), False, False),
        (raw(SSE_HEAD, then="hang"), True, False),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", then="hang"), False, False),
        (streams_for_ever(token("x")), True, True),
    ],
    ids=["stream, nothing yet", "JSON, nothing yet", "stream, head only", "JSON, half", "stream, running"],
)
async def test_the_worker_is_told_at_once(script: Script, stream: bool, after_bytes: bool) -> None:
    async with FaultyEngine(script) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=stream))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        if after_bytes:
            await reader.readuntil(b"data: ")
        loop = asyncio.get_running_loop()
        left = loop.time()
        writer.close()
        await asyncio.wait_for(engine.gone.wait(), 10)
        took = loop.time() - left
        # 100 ms is the claim; a machine at work on other things may be late, but never by seconds
        assert took < 2.0
        record = await door.records.next()
        assert (record.status, record.outcome) == (499, Outcome.CANCELLED)
        assert door.router.outcomes == [Outcome.CANCELLED]
        door.router.assert_idle()
        assert door.client.open_connections == 0


async def test_a_client_that_closes_its_sending_side_counts_as_gone() -> None:
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=True))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        await asyncio.wait_for(engine.gone.wait(), 10)
        assert (await door.records.next()).outcome == Outcome.CANCELLED
        writer.close()


@pytest.mark.parametrize("size", [70_000, 1_000_000])
async def test_who_has_sent_a_long_prompt_is_seen_to_leave(size: int) -> None:
    """Reading pauses where a body comes quicker than it is taken: it must not stay so."""
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=True, says="x" * size))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        writer.close()
        await asyncio.wait_for(engine.gone.wait(), 10)
        record = await door.records.next()
        assert (record.status, record.outcome) == (499, Outcome.CANCELLED)


OURS = pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
"""Where our own server is: the rig has another under the other loop."""


BEHIND = {
    "a request": request(stream=False),
    "two of them": request(stream=True) * 2,
    "half a head": request(stream=True)[:40],
    "half a body": request(stream=True)[:-5],
    "as many as are read ahead": request(stream=False) * 16,
}


@OURS
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_has_asked_for_more_is_seen_to_leave(behind: str, how: str, stream: bool) -> None:
    """The engine is silent, so nothing that is sent could tell."""
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=stream))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        writer.write(BEHIND[behind])
        await writer.drain()
        if how == "closes":
            writer.close()
        else:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        await asyncio.wait_for(engine.gone.wait(), 10)
        record = await door.records.next()
        assert (record.status, record.outcome) == (499, Outcome.CANCELLED)
        assert len(door.records.all) == len(engine.seen) == 1  # what it had asked for behind is nobody's now


async def test_what_is_asked_for_behind_an_answer_is_answered_in_turn() -> None:
    """More of it than is read ahead; each answer is the next one's turn."""
    count = 200
    async with FaultyEngine(answers(b"{}")) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        door.router.gate = asyncio.Event()
        writer.write(request(stream=False))
        padded = request(stream=False).replace(b"host: x", b"host: x\r\nx-pad: " + b"a" * 2000)
        sending = asyncio.create_task(_send(writer, padded * (count - 1)))
        async with asyncio.timeout(10):
            while not door.router.asked:  # noqa: ASYNC110 - the router tells nobody
                await asyncio.sleep(0.001)
        door.router.gate.set()
        for _ in range(count):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(2) == b"{}"
        await sending
        writer.close()
        assert len(engine.seen) == count


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@OURS
async def test_so_much_is_read_ahead_and_no_more() -> None:
    """30 MB behind a request that has no answer: the system's buffers fill, and the client waits."""
    released = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await released.wait()
        await answers(b"{}")(turn)

    async with FaultyEngine(waits) as engine, serving(engine.url) as door:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=False))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        writer.transport.set_write_buffer_limits(0)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n")
        writer.write(b"a" * 30_000_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        assert writer.transport.get_write_buffer_size() > 10_000_000
        writer.transport.abort()
        released.set()
        await door.records.next()


async def test_leaving_while_the_router_decides() -> None:
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        door.router.gate = asyncio.Event()
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=True))
        async with asyncio.timeout(10):
            while not door.router.asked:  # noqa: ASYNC110 - the router tells nobody
                await asyncio.sleep(0.001)
        writer.close()
        record = await door.records.next()
        assert (record.status, record.outcome, record.tries) == (499, Outcome.CANCELLED, ())
        assert engine.seen == []


async def test_leaving_inside_the_request_body() -> None:
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(stream=True)[:-10])
        await writer.drain()
        writer.close()
        record = await door.records.next()
        assert (record.status, record.outcome) == (499, Outcome.CANCELLED)
        assert (engine.seen, door.router.asked) == ([], [])


async def test_a_client_that_stays_is_never_taken_for_one_that_left() -> None:
    """The server says disconnect when an answer is complete, too."""
    body = b'{"choices":[],"usage":null}'
    script = raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (len(body), body),
        then="keep",
    )
    async with FaultyEngine(script) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        for n in range(20):
            writer.write(request(stream=False))
            await reader.readuntil(body)
            assert (await door.records.next()).outcome is Outcome.OK, n
        writer.close()
        assert engine.connections == 1
