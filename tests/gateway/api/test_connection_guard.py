"""Connections held to bounds: what goes in is written byte by byte on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.api.protocol import ConnectionLimits, GuardedProtocol

pytestmark = pytest.mark.anyio


class Echo:
    """Keeps how each request was read; answers `/big` with an endless stream, `/early` before its body, and
    `/last` too, as its connection's last."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["path"] not in ("/early", "/last")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append((scope["method"], scope["path"], body))
        self.headers.append(list(scope["headers"]))
        if scope["path"] == "/big":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            leaving = asyncio.create_task(receive())
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)
            self.gone.set()
            return
        headers = [(b"content-length", b"2")]
        if scope["path"] == "/last":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def guarded(*, keep_alive: float = 5.0, **limits: Any) -> AsyncIterator[tuple[Echo, int]]:
    app = Echo()
    protocol: Any = partial(GuardedProtocol, limits=ConnectionLimits(**limits))
    config = uvicorn.Config(
        app, http=protocol, lifespan="off", log_config=None, access_log=False, port=0,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type] - whole seconds are long for a test
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield app, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """All that the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def parsed(answer: bytes) -> tuple[int, str]:
    """(status, error code) of an answer with an OpenAI error body, which must be the only one."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


OK = b"POST /one HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"
NEXT = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_an_honest_request_passes_in_any_pieces() -> None:
    async with guarded() as (app, port):
        answer = await exchange(port, *(OK[i : i + 1] for i in range(len(OK))))
        assert answer.startswith(b"HTTP/1.1 200")
        assert app.seen == [("POST", "/one", b"abc")]


async def test_chunked_and_pipelined_requests_pass() -> None:
    async with guarded() as (app, port):
        chunked = (
            b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"
        )
        answer = await exchange(port, chunked + OK)
        assert answer.count(b"HTTP/1.1 200") == 2
        assert app.seen == [("POST", "/c", b"abc"), ("POST", "/one", b"abc")]


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        b"content-length: 3\r\ncontent-length: 3\r\n",
        b"content-length: 3\r\ncontent-length: 4\r\n",
        b"content-length: 3, 3\r\n",
        b"content-length: +3\r\n",
        b"content-length: -3\r\n",
        b"content-length: 0x3\r\n",
        b"content-length: 3 4\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"content-length:\r\n",
        b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: \x0bchunked\r\n",
        b"content-length : 3\r\n",
        b"x: y\r\n folded: z\r\ncontent-length: 3\r\n",
        b"x\x00y: z\r\n",
        b"x: a\x00b\r\n",
        b"x: a\rb: c\r\n",
        b"host: other\r\n",
        b": empty\r\n",
    ],
)
async def test_a_head_with_two_readings_is_refused(head: bytes) -> None:
    """RFC 9112, sections 5 and 6.3: nothing of what follows may be taken for a request."""
    async with guarded() as (app, port):
        request = b"POST /one HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n" + b"0\r\n\r\n" + NEXT
        answer = await exchange(port, request)
        assert parsed(answer) == (400, "bad_request")
        assert app.seen == []


@pytest.mark.parametrize(
    "chunks",
    [b"g\r\nabc", b"-3\r\nabc", b"3\nabc\r\n", b"3\r\nabcX\r\n", b" 3\r\nabc\r\n", b"0x3\r\nabc\r\n",
     b"fffffffffffffffff\r\nabc", b"3 \r\nab", b"\r\nabc"],
)  # fmt: skip
async def test_bad_chunk_sizes_are_refused(chunks: bytes) -> None:
    async with guarded() as (app, port):
        request = (
            b"POST /one HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        )
        answer = await exchange(port, request + NEXT)
        assert parsed(answer) == (400, "bad_request")
        assert app.seen == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on the plain port
        b"nonsense\r\n\r\n",
    ],
)
async def test_what_is_no_request_of_ours_is_refused(request_bytes: bytes) -> None:
    async with guarded() as (app, port):
        assert parsed(await exchange(port, request_bytes)) == (400, "bad_request")
        assert app.seen == []


@pytest.mark.parametrize(
    "host",
    [
        b"a b@c/",
        b"user@a",
        b"a/",
        b"a:b",
        b"a:80:80",
        b"a, b",
        b"[::1",
        b"::1",
        b"a?x",
        b"a#x",
        b"a\\b",
        b"\xe9",
    ],
)
async def test_a_malformed_host_is_refused(host: bytes) -> None:
    """RFC 9112, section 3.2: with 400."""
    async with guarded() as (app, port):
        answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: " + host + b"\r\n\r\n" + NEXT)
        assert parsed(answer) == (400, "bad_request")
        assert app.seen == []


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"a",
        b"a.b_c-d:8080",
        b"127.0.0.1:80",
        b"[::1]",
        b"[fe80::1%25eth0]:443",
        b"a:",
        b"xn--bcher-kva.example.",
    ],
)
async def test_an_honest_host_passes(host: bytes) -> None:
    async with guarded() as (app, port):
        answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert app.headers[0][0] == (b"host", host)


@pytest.mark.parametrize("version", [b"2.0", b"0.9", b"1.2", b"3.0", b"3.7"])
async def test_other_versions_are_refused(version: bytes) -> None:
    async with guarded() as (app, port):
        answer = await exchange(port, b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n" + NEXT)
        assert parsed(answer) == (505, "http_version_not_supported")
        assert app.seen == []


@pytest.mark.parametrize("method", [b"BREW", b"get", b"X-DO"])
async def test_an_unknown_method_is_refused(method: bytes) -> None:
    """RFC 9110, section 15.6.2."""
    async with guarded() as (app, port):
        answer = await exchange(port, method + b" /a HTTP/1.1\r\nhost: x\r\n\r\n" + NEXT)
        assert parsed(answer) == (501, "not_implemented")
        assert app.seen == []


@pytest.mark.parametrize("target", [b"a:80", b"/"])
async def test_connect_opens_no_tunnel(target: bytes) -> None:
    async with guarded() as (app, port):
        answer = await exchange(port, b"CONNECT " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n" + NEXT)
        assert parsed(answer) == (405, "method_not_allowed")
        assert app.seen == []


UPGRADES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
]
BODIES = [
    (b"content-length: 37\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\nab", NEXT + b"ab"),
    (b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: u\r\n\r\n", b"abcde"),
    (b"\r\n", b""),
]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(("rest", "body"), BODIES)
async def test_an_upgrade_is_ignored_and_its_body_stays_its_own(
    upgrade: bytes, rest: bytes, body: bytes
) -> None:
    """RFC 9110, section 7.8. Java's HttpClient asks for h2c in every first request."""
    first = b"POST /up HTTP/1.1\r\nhost: x\r\n" + upgrade + rest
    stream = first + first.replace(b"/up", b"/two") + OK
    seen = [("POST", "/up", body), ("POST", "/two", body), ("POST", "/one", b"abc")]
    async with guarded() as (app, port):
        for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
            answer = await exchange(port, *pieces)
            assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"HTTP/1.1 ") == 3
            assert app.seen == seen
            app.seen.clear()


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_split_at_every_place(upgrade: bytes) -> None:
    """The parser itself, since a socket may join what was sent apart."""
    for rest, body in BODIES:
        first = b"POST /up HTTP/1.1\r\nhost: x\r\n" + upgrade + rest
        stream = first + OK
        for at in range(1, len(stream)):
            assert _requests(stream[:at], stream[at:]) == [(b"/up", body), (b"/one", b"abc")], (at, rest)


def _requests(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    read: list[tuple[bytes, bytearray]] = []
    whole: list[bytes] = []

    class Reading(GuardedProtocol):
        def _begin_cycle(self) -> None:
            read.append((self.url, bytearray()))

        def on_body(self, body: bytes) -> None:
            read[-1][1].extend(body)

        def on_message_complete(self) -> None:
            if not self._upgrade_asked:
                whole.append(read[-1][0])
            self._in_body = False if not self._upgrade_asked else self._in_body

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.new_event_loop()
    protocol = Reading(config, ServerState(), {}, loop, limits=ConnectionLimits())
    for piece in pieces:
        protocol._parse(piece)
    loop.close()
    assert whole == [url for url, _ in read]
    return [(url, bytes(body)) for url, body in read]


async def test_an_upgrade_with_two_lengths_is_refused() -> None:
    async with guarded() as (app, port):
        head = b"POST / HTTP/1.1\r\nhost: x\r\n" + UPGRADES[0] + b"content-length: 3\r\n"
        answer = await exchange(port, head + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT)
        assert parsed(answer) == (400, "bad_request")
        assert app.seen == []


async def test_who_asked_before_sending_its_body_and_was_answered_must_connect_again() -> None:
    """RFC 9110, section 10.1.1: what it sends next could be the body, or a request."""
    async with guarded() as (_, port):
        asked = b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 37\r\nexpect: 100-continue\r\n\r\n"
        answer = await exchange(port, asked)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 200")


async def test_heads_that_are_too_large() -> None:
    async with guarded(max_head=2000, max_headers=20) as (app, port):
        start = b"GET / HTTP/1.1\r\nhost: x\r\n"
        for head in (
            start + b"x: " + b"a" * 2000 + b"\r\n\r\n",
            start + b"".join(b"x%d: a\r\n" % n for n in range(20)) + b"\r\n",
            b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        ):
            assert parsed(await exchange(port, head)) == (431, "headers_too_large")
        # one that never ends is refused before it fills the memory
        assert parsed(await exchange(port, start + b"x: ", *(b"a" * 500 for _ in range(5)))) == (
            431, "headers_too_large",
        )  # fmt: skip
        assert app.seen == []
        fits = start + b"".join(b"x%d: a\r\n" % n for n in range(18)) + b"connection: close\r\n\r\n"
        assert (await exchange(port, fits)).startswith(b"HTTP/1.1 200")


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
        assert parsed(answer)[0] >= 400
    assert [r for r in caplog.records if r.exc_info] == []
