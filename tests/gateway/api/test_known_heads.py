"""Request heads that are looked up: what counts as known, and what a connection makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.known_heads import KnownHeads
from gateway.api.request_heads import RequestHead
from tests.gateway.api.guard import NEXT, guarded
from tests.gateway.api.rig import running


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop on which the rig takes our own listener."""
    return "asyncio", {"use_uvloop": True}


HEAD = RequestHead("POST", "/one", b"/one", b"", "1.1", keep_alive=True, expects_100=False)
HEADERS = [(b"host", b"x"), (b"content-length", b"3"), (b"x-a", b"b")]


def request(body: bytes, length: bytes | None = None) -> bytes:
    length = b"%d" % len(body) if length is None else length
    return b"POST /one HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\nX-A: b\r\n\r\n%s" % (length, body)


def learned() -> KnownHeads:
    known = KnownHeads()
    known.learn(request(b"abc"), HEAD, HEADERS)
    assert len(known) == 1
    return known


def test_the_same_head_with_a_body_of_any_length() -> None:
    known = learned()
    for size in (0, 1, 3, 70_000):
        headers = [(b"host", b"x"), (b"content-length", b"%d" % size), (b"x-a", b"b")]
        assert known.find(request(b"z" * size)) == (HEAD, headers, b"z" * size, True)
    assert HEADERS[1] == (b"content-length", b"3")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /one HTTP/1.1\r\n",
        request(b"abcd", b"3"),
        request(b"abcd", b"+4"),
        request(b"abcd", b"04"),
        request(b"abcd", b" 4"),
        request(b"abcd", b"4 "),
        request(b"abcd", b"4\r\nContent-Length: 4"),
        request(b"abcd", b"4\r\nTransfer-Encoding: chunked"),
        request(b"abcd", b""),
        request(b"abcd").replace(b"X-A: b", b"X-A: c"),
        request(b"abcd").replace(b"POST", b"PUT"),
        request(b"abcd").replace(b"Content-Length", b"content-length"),
        request(b"abcd").replace(b"\r\n\r\n", b"\n\n"),
        request(b"abc") + NEXT,
    ],
)
def test_whatever_is_not_exactly_that_has_to_be_read(data: bytes) -> None:
    assert learned().find(data) is None


@pytest.mark.parametrize(
    ("data", "headers", "head"),
    [
        (request(b"abc") + NEXT, HEADERS, HEAD),
        (request(b"abc"), [*HEADERS, (b"expect", b"100-continue")], HEAD),
        (request(b"abc"), [*HEADERS, (b"upgrade", b"h2c")], HEAD),
        (request(b"abc"), [*HEADERS, (b"transfer-encoding", b"chunked")], HEAD),
        (request(b"abc"), [*HEADERS, (b"content-length", b"3")], HEAD),
        (request(b"abc"), HEADERS[:1], HEAD),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", HEADERS[:1], HEAD),
        (request(b"abc").replace(b"Host", b"X-Length: 3\r\nHost"), HEADERS, HEAD),
        (request(b"abc"), HEADERS, RequestHead("POST", "/", b"/", b"", "1.0", True, False)),
        (request(b"abc"), HEADERS, RequestHead("POST", "/", b"/", b"", "1.1", False, False)),
        (request(b"abc").replace(b"X-A: b", b"X-A: " + b"b" * 4096), HEADERS, HEAD),
    ],
)
def test_what_is_more_than_a_length_is_not_learned(
    data: bytes, headers: list[tuple[bytes, bytes]], head: RequestHead
) -> None:
    known = KnownHeads()
    known.learn(data, head, headers)
    assert len(known) == 0


def test_a_body_that_is_yet_to_come() -> None:
    known = KnownHeads()
    known.learn(request(b"", b"3"), HEAD, HEADERS)
    for body, length in ((b"", b"1"), (b"abc", b"4"), (b"", b"999999999999999")):
        headers = [(b"host", b"x"), (b"content-length", length), (b"x-a", b"b")]
        assert known.find(request(body, length)) == (HEAD, headers, body, False)
    assert known.find(request(b"", b"1" * 16)) is None


def test_only_so_many_are_known() -> None:
    known = KnownHeads()
    for n in range(1000):
        known.learn(request(b"abc").replace(b"X-A: b", b"X-A: %d" % n), HEAD, HEADERS)
        assert 1 <= len(known) <= 256
    assert known.find(request(b"abcd").replace(b"X-A: b", b"X-A: 999")) is not None


@pytest.mark.anyio
async def test_a_connection_goes_on_from_known_heads_to_any_others() -> None:
    pieces = [
        [request(b"abc")],  # read, and learned
        [request(b"abcde")],  # known
        [request(b"abcdefg")[:40], request(b"abcdefg")[40:]],  # known, and not whole at once
        [request(b"hello")],
        [request(b"one") + request(b"four")],  # two at once
        [request(b"")],
        [request(b"", b"3"), b"xyz"],  # its head alone, as many clients send it
        [request(b"v", b"3"), b"wx" + request(b"yz")],
        [b"GET /get HTTP/1.1\r\nhost: x\r\n\r\n"],
        [request(b"x" * 100_000)],
    ]
    async with guarded() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for together in pieces:
            for piece in together:
                writer.write(piece)
                await asyncio.sleep(0.01)  # so that they come apart; joined, they are the same requests
            for _ in range(b"".join(together).count(b" HTTP/1.1\r\n")):
                answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok"), 10)
                assert answer.startswith(b"HTTP/1.1 200 ")
        writer.write(request(b"abc", b"4") + b"\x00")  # whose last byte is body, and none too many
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok"), 10)
        writer.write(request(b"abc") + b"\x00")
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"}")  # a refusal, and the end
        writer.close()
    bodies = [b"abc", b"abcde", b"abcdefg", b"hello", b"one", b"four", b"", b"xyz", b"vwx", b"yz"]
    bodies += [b"", b"x" * 100_000, b"abc\x00"]
    assert [body for _, _, body in app.seen[: len(bodies)]] == bodies
    lengths = [dict(headers).get(b"content-length") for headers in app.headers[: len(bodies)]]
    assert lengths == [None if n == 10 else b"%d" % len(body) for n, body in enumerate(bodies)]


@pytest.mark.anyio
async def test_an_application_begins_though_the_body_does_not_come() -> None:
    whole = request(b"abc").replace(b"/one", b"/early")  # is answered unread
    async with guarded() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for data in (whole, whole[:-3], b"abc" + request(b"next")):
            writer.write(data)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok"), 10)
            assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert [(path, body) for _, path, body in app.seen] == [
        ("/early", b""),
        ("/early", b""),
        ("/one", b"next"),
    ]


@pytest.mark.anyio
async def test_a_client_that_leaves_behind_a_known_head_is_told_of() -> None:
    messages: list[str] = []
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        messages.append(message["type"])
        if message["type"] == "http.disconnect":
            left.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with running(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"abc"))
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok"), 10)
        writer.write(request(b"", b"3"))
        writer.close()
        await asyncio.wait_for(left.wait(), 10)
    assert messages == ["http.request", "http.disconnect"]
