"""Connections held to bounds: what goes in is written byte by byte on a real socket."""

from __future__ import annotations

import asyncio
import re
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.protocol import GuardedProtocol
from tests.gateway.api.guard import NEXT, OK, exchange, guarded, parsed

pytestmark = pytest.mark.anyio


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
        b"origin: https://a\r\norigin: https://b\r\n",
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


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("last", [b"HTTP/1.1\r\nconnection: close", b"HTTP/1.0"])
@pytest.mark.parametrize(("rest", "body"), [BODIES[0], BODIES[2]])
async def test_an_upgrade_of_a_connections_last_request_is_ignored_too(
    upgrade: bytes, last: bytes, rest: bytes, body: bytes
) -> None:
    """What comes behind its body is no request any more."""
    stream = b"POST /up " + last + b"\r\nhost: x\r\n" + upgrade + rest + OK
    async with guarded() as (app, port):
        for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
            answer = await exchange(port, *pieces)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.count(b"HTTP/1.1 ") == 1
            assert app.seen == [("POST", "/up", body)]
            app.seen.clear()


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


HEAD = b"POST /one HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n"


@pytest.mark.parametrize(
    ("asked", "status", "own"),
    [
        (b"rubbish\r\n\r\n", 400, False),
        (b"GET / HTTP/1.1\r\nx-request-id: mine\r\n\r\n", 400, True),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, True),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx-request-id: mi ne\r\ncontent-length: x\r\n\r\n", 400, False),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n", 405, True),
        (HEAD + b"x: " + b"a" * 3000, 431, True),
        (b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n", 501, False),
        (b"GET / HTTP/1.2\r\nhost: x\r\n\r\n", 505, False),
        (HEAD + b"x: 1", 408, True),
    ],
)
@pytest.mark.parametrize("before", [b"", HEAD.replace(b"mine", b"before") + b"content-length: 0\r\n\r\n"])
async def test_a_refusal_has_a_date_and_the_request_s_name(
    before: bytes, asked: bytes, status: int, own: bool
) -> None:
    async with guarded(max_head=2000, head_timeout=0.3 if status == 408 else 10.0) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if before:
            writer.write(before)
            await asyncio.wait_for(reader.readuntil(b"ok"), 10)
        writer.write(asked)
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        writer.close()
        first, *lines = head.decode().split("\r\n")
        names = [line.partition(": ")[0] for line in lines]
        said = dict(line.split(": ", 1) for line in lines)
        assert (int(first.split()[1]), len(names)) == (status, len(set(names)))
        assert int(said["content-length"]) == len(body)
        assert parsedate_to_datetime(said["date"]).tzinfo is not None
        assert re.fullmatch("mine" if own else "[0-9a-f]{32}", said["x-request-id"])


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
