"""What a connection may send, how long it may take, and how it ends, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from tests.gateway.api.guard import NEXT, OK, exchange, guarded, parsed

pytestmark = pytest.mark.anyio

CHUNKED = b"POST /one HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
EARLY = b"GET /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def flooded(port: int, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """(bytes of `piece` over and over that the server let in, its answer), at most 64 MB."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    sent = 0
    with contextlib.suppress(ConnectionError):
        writer.write(start)
        while not answer.done() and sent < 64_000_000:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        return sent, await asyncio.wait_for(answer, 20)
    return sent, b""  # it closed while more was coming: the answer may be lost with it


async def test_trailers_are_dropped() -> None:
    """RFC 9110, section 6.5.1: none of these fields may be taken from a trailer."""
    async with guarded() as (app, port):
        trailers = b"x-evil: 1\r\ncontent-encoding: gzip\r\nHost: y\r\nexpect: 100-continue\r\n\r\n"
        for pieces in ([CHUNKED + b"3\r\nabc\r\n0\r\n" + trailers + OK],
                       [CHUNKED, b"3\r\nabc\r\n0\r\n", trailers, OK]):  # fmt: skip
            answer = await exchange(port, *pieces)
            assert answer.count(b"HTTP/1.1 200") == 2
        assert app.seen == [("POST", "/one", b"abc")] * 4
        assert app.headers[::2] == [[(b"host", b"x"), (b"transfer-encoding", b"chunked")]] * 2


async def test_trailers_and_chunk_lines_have_bounds() -> None:
    async with guarded(max_head=2000, max_headers=20) as (app, port):
        last = CHUNKED + b"3\r\nabc\r\n0\r\n"
        for request in (
            [last + b"x: a\r\n" * 21 + b"\r\n"],
            [last + b"x: " + b"a" * 2000 + b"\r\n\r\n"],
            [last + b"x: " + b"a" * 900 + b"\r\n" + b"y: " + b"b" * 1200 + b"\r\n\r\n"],
        ):
            assert parsed(await exchange(port, *request)) == (431, "headers_too_large")
        assert app.seen == []
        # as many as a head may have
        fits = CHUNKED.replace(b"host: x", b"host: x\r\nconnection: close") + b"3;a=b\r\nabc\r\n0\r\n"
        assert (await exchange(port, fits + b"x: a\r\n" * 20 + b"\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"3\r\nabc\r\n0\r\n", b"x: a\r\n" * 10_000),  # trailers without end
        (b"3\r\nabc\r\n0\r\nx: ", b"a" * 60_000),  # one that does not end
        (b"3\r\nabc\r\n0\r\n", b"x" * 60_000),  # a name
        (b"3;", b"a" * 60_000),  # an extension of a chunk
        (b"3\r\nabc\r\n0;", b"a" * 60_000),
        (b"", b"0" * 60_000),  # a size
    ],
)
@pytest.mark.parametrize("head", [CHUNKED, EARLY])
async def test_framing_that_never_ends_fills_nothing(head: bytes, start: bytes, piece: bytes) -> None:
    """Whether the application reads the body or has answered without: some socket buffers, and no more."""
    async with guarded() as (app, port):
        sent, answer = await flooded(port, head + start, piece)
        assert sent < 32_000_000
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert [path for _, path, _ in app.seen] in ([], ["/early"])


async def test_an_answer_is_not_followed_by_a_refusal_of_the_rest() -> None:
    """A second one would be the answer to a request that nobody has sent yet."""
    async with guarded(head_timeout=60.0) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(EARLY + b"3\r\nabc\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(b"0\r\n" + b"x: a\r\n" * 102)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


def _sent_whole(port: int, *pieces: bytes) -> bytes:
    """The answer to a client that sends all that it has before it reads."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        for piece in pieces:
            client.sendall(piece)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /last HTTP/1.1\r\nhost: x\r\ncontent-length: 800000\r\n\r\n", 200),
        (b"POST /one HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: 800000\r\n\r\n", 400),
        (b"POST /one HTTP/1.1\r\nhost: x\r\nx: ", 431),
    ],
)
async def test_who_is_still_sending_can_read_the_last_answer(head: bytes, status: int) -> None:
    """RFC 9112, section 9.6: unread bytes would have reset its connection."""
    async with guarded(head_timeout=60.0) as (_, port):
        answer = await asyncio.to_thread(_sent_whole, port, head, *[b"x" * 80_000] * 10)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_what_is_still_sent_then_has_a_bound() -> None:
    async with guarded(head_timeout=60.0) as (_, port):
        head = b"POST /last HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        sent, _ = await flooded(port, head, b"3\r\nabc\r\n" * 8000)
        assert sent < 32_000_000  # some socket buffers, and no more


async def test_a_body_that_nobody_reads_ends_soon_or_the_connection_does() -> None:
    async with guarded(head_timeout=0.3) as (_, port):
        answer = await exchange(port, EARLY, b"3\r\nabc\r\n", b"0\r\n\r\n" + OK)
        assert answer.count(b"HTTP/1.1 200") == 2
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(EARLY)
        rest = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            while not rest.done():
                writer.write(b"3\r\nabc\r\n")
                await asyncio.sleep(0.01)
            assert (await rest).count(b"HTTP/1.1 ") == 1
        writer.close()


async def test_a_head_that_drips_is_refused_in_time() -> None:
    async with guarded(head_timeout=0.3) as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # to the first piece: what is still written after it may reset the connection
        answer = asyncio.create_task(reader.read(65536))
        for byte in b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000:
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert parsed(await answer) == (408, "request_timeout")
        assert app.seen == []
        writer.close()


@pytest.mark.parametrize("cut", [-10, -4, -1])
async def test_heads_that_come_together_are_measured_apart(cut: int) -> None:
    """Forty in one piece, which ends inside the last: together they are more than one may be."""
    one = b"POST /one HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100 + b"\r\ncontent-length: 0\r\n\r\n"
    last = one.replace(b"host", b"connection: close\r\nhost")
    async with guarded(max_head=1000) as (app, port):
        answer = await exchange(port, (one * 39 + last)[:cut], last[cut:])
        assert answer.count(b"HTTP/1.1 200") == len(app.seen) == 40


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with guarded(head_timeout=0.2) as (_, port):
        assert await exchange(port) == b""
        assert await exchange(port, b"\r\n") == b""


async def test_a_kept_connection_has_to_be_quick_again() -> None:
    async with guarded(head_timeout=0.3) as (app, port):
        first = b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n"
        answer = await exchange(port, first, b"GET /second HT")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answer
        assert [path for _, path, _ in app.seen] == ["/first"]


async def test_a_kept_connection_that_asks_nothing_more_is_closed() -> None:
    async with guarded(keep_alive=0.2, head_timeout=3600) as (app, port):
        answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (answer.count(b"HTTP/1.1 200"), len(app.seen)) == (1, 1)
        assert b"connection: close" not in answer.lower()


async def test_a_client_that_takes_nothing_is_let_go() -> None:
    async with guarded(send_timeout=0.3) as (app, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(app.gone.wait(), 20)


async def test_the_last_connection() -> None:
    async with guarded(max_connections=2) as (_, port):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in kept:  # both are really there
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for reader, _ in kept:
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert parsed(await exchange(port)) == (503, "too_many_connections")
        kept[0][1].close()
        await kept[0][1].wait_closed()
        answer = b""
        while not answer.startswith(b"HTTP/1.1 200"):  # the server hears of it in its own time
            answer = await exchange(port, OK)
        kept[1][1].close()


async def test_rubbish_behind_a_request_does_not_get_into_its_answer() -> None:
    async with guarded() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"rubbish\r\n\r\n")
        rest = bytearray()
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(1 << 20), 20):
                rest += piece
        assert b"HTTP/1.1" not in rest
        assert [path for _, path, _ in app.seen] == ["/big"]
        writer.close()


@pytest.mark.parametrize("asked", [b"GET /early HTTP/1.1\r\nhost: x\r\n\r\n", NEXT + NEXT])
async def test_rubbish_before_the_answer_has_begun_ends_in_one_refusal(
    asked: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What was asked is answered no more, behind the last bytes: writing there is a fault of our own."""
    async with guarded() as (_, port):
        answer = await exchange(port, asked + b"rubbish\r\n\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert parsed(answer) == (400, "bad_request")  # and not 501: the line at the front is well known
    assert [r for r in caplog.records if r.exc_info] == []
