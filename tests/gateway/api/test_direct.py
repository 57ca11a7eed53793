"""Answers that are written below ASGI, as a client's socket sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.direct import DIRECT, DirectOutlet
from tests.gateway.api.rig import running

pytestmark = pytest.mark.anyio

Answer = Callable[[DirectOutlet], None]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop on which the rig takes our own listener."""
    return "asyncio", {"use_uvloop": True}


async def said(answer: Answer, head: bytes) -> tuple[bytes, list[bytes]]:
    """What a client reads until the connection ends: the status line, and the rest of it by lines."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer(scope[DIRECT])

    async with running(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        data = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    status, *lines = data.split(b"\r\n")
    return status, [line for line in lines if not line.startswith(b"date: ")]


def known(outlet: DirectOutlet) -> None:
    outlet.start(200, [(b"x-a", b"1"), (b"content-length", b"5")])
    outlet.body(b"he", last=False)
    outlet.body(b"llo", last=True)


def streamed(outlet: DirectOutlet) -> None:
    outlet.start(200, [])
    outlet.body(b"hello", last=False)
    outlet.body(b"", last=False)
    outlet.body(b"world", last=True)


async def test_a_known_length() -> None:
    got = await said(known, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert got == (b"HTTP/1.1 200 OK", [b"x-a: 1", b"content-length: 5", b"connection: close", b"", b"hello"])


async def test_an_unknown_length_is_chunked() -> None:
    got = await said(streamed, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    chunks = [b"5", b"hello", b"5", b"world", b"0", b"", b""]
    assert got == (b"HTTP/1.1 200 OK", [b"transfer-encoding: chunked", b"connection: close", b"", *chunks])


async def test_chunks_of_many_kilobytes_are_framed_alike() -> None:
    def large(outlet: DirectOutlet) -> None:
        outlet.start(200, [])
        outlet.body(b"x" * 40_000, last=True)

    _, lines = await said(large, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert lines[3:] == [b"9c40", b"x" * 40_000, b"0", b"", b""]


async def test_http_1_0_knows_no_chunks_so_the_end_is_the_connections() -> None:
    got = await said(streamed, b"GET / HTTP/1.0\r\nhost: x\r\n\r\n")
    assert got == (b"HTTP/1.1 200 OK", [b"connection: close", b"", b"helloworld"])


async def test_a_head_answer_has_a_length_and_no_body() -> None:
    got = await said(known, b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert got == (b"HTTP/1.1 200 OK", [b"x-a: 1", b"content-length: 5", b"connection: close", b"", b""])


async def test_an_answer_that_says_close_closes() -> None:
    def refused(outlet: DirectOutlet) -> None:
        outlet.start(408, [(b"content-length", b"0"), (b"connection", b"close")])
        outlet.body(b"", last=True)

    got = await said(refused, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert got == (b"HTTP/1.1 408 Request Timeout", [b"content-length: 0", b"connection: close", b"", b""])


async def test_one_connection_serves_many_and_pipelined_ones_in_order() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await asyncio.sleep(0)
        outlet: DirectOutlet = scope[DIRECT]
        outlet.start(200, [(b"content-length", b"2")])
        outlet.body(scope["path"].encode(), last=True)

    async with running(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % n for n in range(5)))
        data = b""
        while data.count(b"\r\n\r\n") < 5 or not data.endswith(b"/4"):
            data += await asyncio.wait_for(reader.read(4096), 10)
        writer.close()
    assert seen == ["/0", "/1", "/2", "/3", "/4"]
    assert [part[:2] for part in data.split(b"\r\n\r\n")[1:]] == [b"/0", b"/1", b"/2", b"/3", b"/4"]


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\x00b"])
async def test_a_header_cannot_hold_another(value: bytes) -> None:
    def split(outlet: DirectOutlet) -> None:
        with pytest.raises(RuntimeError, match="line end"):
            outlet.start(200, [(b"x-a", value)])
        known(outlet)

    status, _ = await said(split, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert status == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("body", [b"hell", b"hello!"])
async def test_a_length_is_kept(body: bytes) -> None:
    def wrong(outlet: DirectOutlet) -> None:
        outlet.start(200, [(b"content-length", b"5")])
        with pytest.raises(RuntimeError, match="not as long"):
            outlet.body(body, last=True)

    # uvicorn closes what an application has left open
    assert await said(wrong, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") == (b"", [])


async def test_a_client_that_leaves_is_told_of_once() -> None:
    told: list[str] = []
    came, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        outlet: DirectOutlet = scope[DIRECT]

        def tell() -> None:
            told.append("gone")
            left.set()

        outlet.on_gone(tell)
        came.set()
        await left.wait()
        outlet.start(200, [])
        outlet.body(b"nobody", last=True)

    async with running(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(came.wait(), 10)
        writer.close()
        await asyncio.wait_for(left.wait(), 10)
    assert told == ["gone"]


@pytest.mark.parametrize(
    ("headers", "version", "offered"),
    [
        ([], b"1.1", [False, False, True, True, False]),
        ([], b"1.0", [False] * 5),
        ([(b"content-length", b"10")], b"1.1", [False] * 5),
    ],
)
async def test_chunks_are_taken_as_they_are_while_an_answer_goes_out_in_chunks(
    headers: list[tuple[bytes, bytes]], version: bytes, offered: list[bool]
) -> None:
    seen: list[bool] = []

    def answer(outlet: DirectOutlet) -> None:
        seen.append(outlet.framed is not None)
        outlet.start(200, headers)
        seen.append(outlet.framed is not None)
        outlet.body(b"hello", last=False)
        seen.append(outlet.framed is not None)
        if outlet.framed is not None:
            outlet.framed(b"3\r\nabc\r\n")
        seen.append(outlet.framed is not None)
        outlet.body(b"world", last=True)
        seen.append(outlet.framed is not None)

    _, lines = await said(answer, b"GET / HTTP/%s\r\nhost: x\r\nconnection: close\r\n\r\n" % version)
    assert seen == offered
    if True in offered:
        assert lines[-9:] == [b"5", b"hello", b"3", b"abc", b"5", b"world", b"0", b"", b""]
    else:
        assert lines[-1] == b"helloworld"
