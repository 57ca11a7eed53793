"""The client against engines that misbehave, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.errors import (
    ConfigError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from gateway.upstream.client import UpstreamClient
from gateway.upstream.origin import Origin
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.wire import Flow, ResponseHead, UpstreamRequest
from tests.faults import SSE_HEAD, FaultyEngine, Turn, answers, chunk, hangs, head, raw, streams_for_ever

pytestmark = pytest.mark.anyio

PATIENT = Timeouts(connect=5, first_byte=10, whole_answer=10, idle=10, total=30)
POST = UpstreamRequest(b"POST", b"/x", [(b"a", b"1"), (b"a", b"2")], b"body")


@dataclass
class Collect:
    """A sink that keeps all."""

    head: ResponseHead | None = None
    body: bytes = b""
    ended: bool = False
    flow: Flow | None = None
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def on_head(self, head: ResponseHead, flow: Flow) -> None:
        assert self.head is None
        self.head, self.flow = head, flow

    def on_body(self, data: bytes, last: bool) -> None:
        assert not self.ended
        self.body += data
        self.ended = last
        self.first.set()


async def send(
    client: UpstreamClient,
    url: str,
    request: UpstreamRequest = POST,
    timeouts: Timeouts = PATIENT,
    sink: Collect | None = None,
) -> Collect:
    sink = sink or Collect()
    deadline = asyncio.get_running_loop().time() + timeouts.total
    await client.exchange(url, request, sink, timeouts, deadline)
    return sink


async def test_a_request_and_its_answer_on_the_wire() -> None:
    async with FaultyEngine(answers(b"hello", 201, "x-a: 1", "x-a: 2")) as engine:
        client = UpstreamClient()
        got = await send(client, engine.url + "/base/")
        await client.close()
    assert got.head is not None
    assert (got.head.status, got.body, got.ended) == (201, b"hello", True)
    assert got.head.headers[2:] == [(b"x-a", b"1"), (b"x-a", b"2")]
    seen = engine.seen[0]
    assert (seen.method, seen.target, seen.body) == ("POST", "/base/x", b"body")
    host = engine.url.removeprefix("http://")
    assert seen.headers == [("host", host), ("a", "1"), ("a", "2"), ("content-length", "4")]


async def test_connections_are_kept_and_used_again() -> None:
    async with FaultyEngine(answers()) as engine:
        client = UpstreamClient()
        for _ in range(5):
            await send(client, engine.url)
        assert (engine.connections, client.open_connections, client.idle_connections) == (1, 1, 1)
        assert repr(client) == "<UpstreamClient origins=1 open=1 idle=1>"
        await asyncio.gather(*(send(client, engine.url) for _ in range(20)))
        assert client.idle_connections == 20
        await client.close()
        assert (client.open_connections, client.idle_connections) == (0, 0)


async def test_idle_connections_are_bounded_in_number_and_age() -> None:
    async with FaultyEngine(answers()) as engine:
        client = UpstreamClient(max_idle=3, max_idle_age=0.05)
        await asyncio.gather(*(send(client, engine.url) for _ in range(8)))
        assert client.idle_connections == 3
        async with asyncio.timeout(5):
            while client.open_connections:  # noqa: ASYNC110 - the sweeper tells nobody
                await asyncio.sleep(0.01)
        await client.close()


async def test_a_stale_connection_is_replaced_once_and_unseen() -> None:
    async def closes_next(turn: Turn) -> None:
        await answers(b"one")(turn)
        await turn.reader.readuntil(b"\r\n\r\n")
        # the second request has come on the kept connection: no byte of an answer to it
        turn.reset()

    async with FaultyEngine(closes_next, answers(b"two")) as engine:
        client = UpstreamClient()
        assert (await send(client, engine.url)).body == b"one"
        assert (await send(client, engine.url)).body == b"two"
        assert engine.connections == 2
        await client.close()


async def test_a_fresh_connection_that_closes_is_an_error_and_not_tried_again() -> None:
    async with FaultyEngine(raw(then="close")) as engine:
        client = UpstreamClient()
        with pytest.raises(UpstreamConnectError, match="without an answer"):
            await send(client, engine.url)
        assert engine.connections == 1
        await client.close()


async def test_a_kept_connection_that_dies_inside_its_answer_is_not_tried_again() -> None:
    async with FaultyEngine(answers(), raw(head(200, "content-length: 9") + b"abc", then="reset")) as engine:
        client = UpstreamClient()
        await send(client, engine.url)
        with pytest.raises(UpstreamProtocolError, match="inside an answer"):
            await send(client, engine.url)
        assert len(engine.seen) == 2
        await client.close()


async def test_nobody_listens(free_port: Callable[[], int]) -> None:
    client = UpstreamClient()
    with pytest.raises(UpstreamConnectError, match="refused"):
        await send(client, f"http://127.0.0.1:{free_port()}")
    assert client.open_connections == 0


@pytest.mark.parametrize(
    ("pieces", "then"),
    [
        ([b"HTTP/1.1 2"], "close"),
        ([head(200, "content-length: 10") + b"abc"], "close"),
        ([head(200, "content-length: 10") + b"abc"], "reset"),
        ([SSE_HEAD, chunk(b"data: a\n\n")], "close"),
        ([SSE_HEAD, chunk(b"data: a\n\n"), b"5\r\nab"], "reset"),
        ([SSE_HEAD, b"XYZ\r\n"], "hang"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "hang"),
        ([head(200, "content-length: 3", "transfer-encoding: chunked")], "hang"),
        ([head(200, "x: " + "y" * 70_000)], "hang"),
        ([head(200), b"half of a body that only the close ends"], "reset"),
    ],
)
async def test_broken_answers_are_protocol_errors(pieces: list[bytes], then: str) -> None:
    async with FaultyEngine(raw(*pieces, then=then)) as engine:
        client = UpstreamClient()
        with pytest.raises(UpstreamProtocolError):
            await send(client, engine.url)
        assert client.open_connections == 0
        await client.close()


@pytest.mark.parametrize("cut", range(0, 60, 7))
async def test_an_answer_reset_at_any_byte_is_an_error(cut: int) -> None:
    whole = head(200, "content-length: 20") + b"0123456789" * 2
    assert len(whole) > 60
    async with FaultyEngine(raw(whole[:cut], then="reset")) as engine:
        client = UpstreamClient()
        with pytest.raises(UpstreamError):
            await send(client, engine.url)
        assert client.open_connections == 0
        await client.close()


async def test_an_answer_that_drips_byte_by_byte_is_whole() -> None:
    whole = SSE_HEAD + chunk("Grüße".encode()) + b"0\r\n\r\n"
    async with FaultyEngine(raw(*(whole[i : i + 1] for i in range(len(whole))), then="keep")) as engine:
        client = UpstreamClient()
        got = await send(client, engine.url)
        assert (got.body.decode(), got.ended, client.idle_connections) == ("Grüße", True, 1)
        await client.close()


async def test_a_body_that_the_close_ends_is_whole_and_its_connection_gone() -> None:
    async with FaultyEngine(raw(head(200), b"ab", b"cd", then="close")) as engine:
        client = UpstreamClient()
        got = await send(client, engine.url)
        assert (got.body, got.ended, client.open_connections) == (b"abcd", True, 0)
        await client.close()


async def test_bytes_behind_an_answer_close_the_connection() -> None:
    async with FaultyEngine(raw(head(200, "content-length: 2") + b"okHTTP/1.1 200 OK\r\n", then="keep")) as e:
        client = UpstreamClient()
        assert (await send(client, e.url)).body == b"ok"
        assert client.idle_connections == 0
        await client.close()


@pytest.mark.parametrize(
    ("script", "timeouts", "streamed", "phase"),
    [
        (hangs(), Timeouts(first_byte=0.05), True, "first_byte"),
        (hangs(), Timeouts(whole_answer=0.05), False, "first_byte"),
        # a head alone is no answer yet: engines send it before prefill
        (raw(SSE_HEAD, then="hang"), Timeouts(first_byte=0.05), True, "first_byte"),
        (raw(SSE_HEAD, chunk(b"data: a\n\n"), then="hang"), Timeouts(idle=0.05), True, "idle"),
        (streams_for_ever(b"data: a\n\n"), Timeouts(total=0.1), True, "total"),
    ],
)
async def test_each_limit_ends_it_and_says_which(
    script: Callable[..., object], timeouts: Timeouts, streamed: bool, phase: str
) -> None:
    async with FaultyEngine(script) as engine:  # type: ignore[arg-type]
        client = UpstreamClient()
        request = UpstreamRequest(b"POST", b"/x", [], b"{}", streamed)
        with pytest.raises(UpstreamTimeout) as caught:
            await send(client, engine.url, request, timeouts)
        assert caught.value.phase == phase
        await asyncio.wait_for(engine.gone.wait(), 5)
        assert client.open_connections == 0
        await client.close()


async def test_a_paused_answer_is_not_idle() -> None:
    async with FaultyEngine(raw(SSE_HEAD, chunk(b"a"), chunk(b"b") + b"0\r\n\r\n", then="keep")) as engine:
        client = UpstreamClient()
        sink = Collect()
        task = asyncio.create_task(send(client, engine.url, timeouts=Timeouts(idle=0.05), sink=sink))
        await sink.first.wait()
        assert sink.flow is not None
        sink.flow.pause()
        before = sink.body
        await asyncio.sleep(0.2)
        assert (sink.body, task.done()) == (before, False)
        sink.flow.resume()
        await asyncio.wait_for(task, 5)
        assert sink.body == b"ab"
        await client.close()


@pytest.mark.parametrize("script", [hangs(), raw(SSE_HEAD, then="hang"), streams_for_ever(b"data: a\n\n")])
async def test_cancelling_closes_the_connection_at_once(script: Callable[..., object]) -> None:
    async with FaultyEngine(script) as engine:  # type: ignore[arg-type]
        client = UpstreamClient()
        task = asyncio.create_task(send(client, engine.url))
        await engine.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.open_connections == 0
        await asyncio.wait_for(engine.gone.wait(), 5)
        await client.close()


@pytest.fixture
def deaf_url() -> Iterator[str]:
    """A port whose queue of connections is full: another one is neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_connection_that_does_not_come_about(deaf_url: str) -> None:
    client = UpstreamClient()
    with pytest.raises(UpstreamTimeout) as caught:
        await send(client, deaf_url, timeouts=Timeouts(connect=0.05))
    assert (caught.value.phase, client.open_connections) == ("connect", 0)


async def test_cancelling_while_connecting_leaves_nothing(deaf_url: str) -> None:
    client = UpstreamClient()
    task = asyncio.create_task(send(client, deaf_url))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.open_connections == 0


async def test_a_sink_that_fails_ends_its_exchange_only() -> None:
    class Broken(Collect):
        def on_body(self, data: bytes, last: bool) -> None:
            raise ValueError("no more")

    async with FaultyEngine(answers()) as engine:
        client = UpstreamClient()
        with pytest.raises(ValueError, match="no more"):
            await send(client, engine.url, sink=Broken())
        assert (await send(client, engine.url)).ended
        await client.close()


async def test_ipv6() -> None:
    try:
        engine = await FaultyEngine(answers(b"six"), host="::1").__aenter__()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    client = UpstreamClient()
    assert (await send(client, engine.url)).body == b"six"
    assert engine.seen[0].header("host") == [engine.url.removeprefix("http://")]
    await client.close()
    await engine.__aexit__(None, None, None)


async def test_a_large_request_body_arrives_whole() -> None:
    body = bytes(range(256)) * 8192
    async with FaultyEngine(answers()) as engine:
        client = UpstreamClient()
        await send(client, engine.url, UpstreamRequest(b"POST", b"/x", [], body))
        assert engine.seen[0].body == body
        await client.close()


async def test_tls_to_something_that_does_not_speak_it() -> None:
    async with FaultyEngine(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as engine:
        client = UpstreamClient(tls=ssl.create_default_context())
        with pytest.raises((UpstreamConnectError, UpstreamTimeout)):
            await send(client, engine.url.replace("http:", "https:"), timeouts=Timeouts(connect=1))
        assert client.open_connections == 0
        await client.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and self-signed certificate for localhost, in one file."""
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("no openssl here to make a certificate with")
    path = tmp_path / "both.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [tool, *options.split(), *names, "-keyout", tmp_path / "key.pem", "-out", path],
        check=True,
        capture_output=True,
    )
    path.write_bytes((tmp_path / "key.pem").read_bytes() + path.read_bytes())
    return path


async def test_tls_with_a_certificate_that_is_trusted_and_one_that_is_not(certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with FaultyEngine(answers(b"secret"), host="localhost", tls=server) as engine:
        client = UpstreamClient(tls=trusting)
        for _ in range(2):
            assert (await send(client, engine.url)).body == b"secret"
        assert (engine.connections, client.idle_connections) == (1, 1)
        await client.close()
        stranger = UpstreamClient()
        with pytest.raises(UpstreamConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await send(stranger, engine.url)
        assert stranger.open_connections == 0
        await stranger.close()


NOTHING = "<UpstreamClient origins=0 open=0 idle=0>"


async def test_nothing_is_kept_of_an_origin_that_nobody_asks_any_more() -> None:
    """Its last connection grows old, and takes the rest along: a worker may have left, or be asked again."""
    async with FaultyEngine(answers()) as engine:
        client = UpstreamClient(max_idle_age=0.1)
        for _ in range(2):
            await asyncio.gather(*(send(client, engine.url) for _ in range(3)))
            assert repr(client) == "<UpstreamClient origins=1 open=3 idle=3>"
            async with asyncio.timeout(10):
                while repr(client) != NOTHING:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
        await client.close()


@pytest.mark.parametrize("how", ["refused", "closed", "broken", "late", "cancelled"])
async def test_nor_of_one_that_does_not_answer(how: str, free_port: Callable[[], int]) -> None:
    """Who asks an engine that has left leaves nothing behind."""
    scripts = {
        "closed": raw(head(200, "content-length: 2", "connection: close") + b"{}"),
        "broken": raw(b"SSH-2.0\r\n"),
    }
    async with FaultyEngine(scripts.get(how, hangs())) as engine:
        client = UpstreamClient()
        url = f"http://127.0.0.1:{free_port()}" if how == "refused" else engine.url
        limits = Timeouts(5, 0.05, 0.05, 5, 5) if how == "late" else PATIENT
        asking = asyncio.ensure_future(send(client, url, timeouts=limits))
        if how == "cancelled":
            await waiting(engine, 1)
            asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert repr(client) == NOTHING
        await client.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.7:8000", Origin("10.0.0.7", 8000, False, b"10.0.0.7:8000", b"")),
        ("http://engine", Origin("engine", 80, False, b"engine", b"")),
        ("https://engine:443/a/b/", Origin("engine", 443, True, b"engine", b"/a/b")),
        ("http://[fd00::1]:8000", Origin("fd00::1", 8000, False, b"[fd00::1]:8000", b"")),
    ],
)
def test_origins(url: str, expected: Origin) -> None:
    assert Origin.parse(url) == expected


@pytest.mark.parametrize("url", ["ftp://a", "http://", "engine:8000", "http://a:99999", "http://[::1"])
def test_what_is_no_origin(url: str) -> None:
    with pytest.raises(ConfigError):
        Origin.parse(url)


async def waiting(engine: FaultyEngine, count: int) -> None:
    async with asyncio.timeout(10):
        while len(engine.seen) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


async def test_who_waits_at_a_silent_worker_can_be_given_up() -> None:
    client = UpstreamClient()
    async with FaultyEngine(hangs()) as engine, FaultyEngine(hangs()) as other:
        here = [asyncio.ensure_future(send(client, engine.url)) for _ in range(3)]
        there = asyncio.ensure_future(send(client, other.url))
        await waiting(engine, 3)
        await waiting(other, 1)
        # it has never said a word
        assert client.give_up(engine.url, "it is ill", 0.0) == 3
        for task in here:
            with pytest.raises(UpstreamTimeout, match=r"did not answer in time \(it is ill\)") as caught:
                await task
            assert caught.value.phase == "first_byte"
        assert client.give_up(engine.url, "it is ill", 0.0) == 0
        assert client.give_up("http://127.0.0.1:1", "nobody knows it", 0.0) == 0
        assert not there.done()
        there.cancel()
    await client.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_who_is_only_slow_is_not_given_up(ends: bool) -> None:
    """One of its answers goes on, or has ended a moment ago on a connection that is closed by now."""

    async def talks(turn: Turn) -> None:
        if turn.seen.target == "/talks":
            await raw(SSE_HEAD, chunk(b"data: {}\n\n"), *([b"0\r\n\r\n"] if ends else []), then="hang")(turn)
        else:
            await hangs()(turn)

    client = UpstreamClient(max_idle=0)
    async with FaultyEngine(talks) as engine:
        stuck = asyncio.ensure_future(send(client, engine.url))
        sink = Collect()
        talking = asyncio.ensure_future(
            client.exchange(engine.url, UpstreamRequest(b"POST", b"/talks", [], b""), sink, PATIENT, 1e9)
        )
        await sink.first.wait()
        if ends:
            await talking
        await waiting(engine, 2)
        assert client.give_up(engine.url, "it is ill", 60.0) == 0
        # by any measure it is silent, and of the two only one has no byte
        assert client.give_up(engine.url, "it is ill", -60.0) == 1
        with pytest.raises(UpstreamTimeout):
            await stuck
        assert talking.done() is ends
        talking.cancel()
    await client.close()
