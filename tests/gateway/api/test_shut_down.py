"""Requests that outlive the grace at the end: the server cancels them, and their clients are told."""

from __future__ import annotations

import asyncio
import json
import logging
from random import Random
from time import perf_counter

import pytest

from gateway.api.endpoints import EndpointTable
from gateway.api.openai import PublicApp
from gateway.api.serve import ProxyService
from gateway.prompt.reader import read_prompt
from gateway.routing.route import Outcome
from gateway.upstream.client import UpstreamClient
from tests.faults import FaultyEngine, hangs, raw, streams_for_ever, token
from tests.gateway.api.rig import QUICK, InOrderRouter, Records, running, serving

pytestmark = pytest.mark.anyio


def request(path: str) -> bytes:
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "input": "hi",
            "max_tokens": 1,
            "stream": True,
        }
    )
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def cut_off() -> None:
    """As uvicorn does it when its grace is over."""
    tasks = [t for t in asyncio.all_tasks() if "run_asgi" in repr(t.get_coro())]
    assert len(tasks) == 1
    tasks[0].cancel(msg="Task cancelled, timeout graceful shutdown exceeded")


def traces(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


END = b"\n\n\r\n0\r\n\r\n"
SAID = "the server is shutting down"
ERROR = {"message": SAID, "type": "service_unavailable_error", "param": None, "code": None}


@pytest.mark.parametrize(
    ("path", "name", "event"),
    [
        ("/v1/chat/completions", None, {"error": ERROR}),
        ("/v1/responses", "error", {"type": "error", "code": None, "message": SAID, "param": None}),
        (
            "/v1/messages",
            "error",
            {"type": "error", "error": {"type": "overloaded_error", "message": SAID}},
        ),
    ],
)
async def test_a_stream_ends_with_an_error_event(
    path: str, name: str | None, event: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async with FaultyEngine(streams_for_ever(token("x"))) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request(path))
        await reader.readuntil(b"data: ")
        cut_off()
        rest = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        *_, last = rest.removesuffix(b"\r\n0\r\n\r\n").rstrip().split(b"\r\n")
        last = last.split(b"\n\n")[-1]
        lines = last.splitlines()
        assert lines[:-1] == ([f"event: {name}".encode()] if name else [])
        assert json.loads(lines[-1].removeprefix(b"data: ")) == event
        record = await door.records.next()
        assert (record.status, record.outcome, record.error) == (200, Outcome.SHUT_DOWN, SAID)
        assert door.router.outcomes == [Outcome.CANCELLED]
        await asyncio.wait_for(engine.gone.wait(), 10)
        writer.close()
    assert traces(caplog) == []


async def test_before_the_first_byte_it_is_503(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyEngine(hangs()) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request("/v1/chat/completions"))
        await asyncio.wait_for(engine.arrived.wait(), 10)
        cut_off()
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": ERROR}
        record = await door.records.next()
        assert (record.status, record.outcome) == (503, Outcome.SHUT_DOWN)
        writer.close()
    assert traces(caplog) == []


async def test_a_body_that_is_no_stream_is_left_incomplete() -> None:
    half = raw(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 9\r\n\r\nxyz", then="hang")
    async with FaultyEngine(half) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(request("/v1/audio/speech"))
        await reader.readuntil(b"xyz")  # no request id has these letters
        cut_off()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        record = await door.records.next()
        assert (record.status, record.outcome) == (200, Outcome.SHUT_DOWN)
        writer.close()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_a_forced_end_tells_them_too() -> None:
    """A second signal: nobody waits for open answers, and their engine is not said to have broken off."""
    async with FaultyEngine(streams_for_ever(token("x"))) as engine:
        router, records, client = InOrderRouter([engine.url]), Records(), UpstreamClient()
        service = ProxyService(
            router, client, records, read_prompt, options=QUICK, clock=perf_counter, rng=Random(7)
        )
        app = PublicApp(service, models=list, readiness=lambda: None, endpoints=EndpointTable())
        async with running(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/chat/completions"))
            await reader.readuntil(b"data: ")
        rest = await asyncio.wait_for(reader.read(), 10)
        assert rest.endswith(b"data: " + json.dumps({"error": ERROR}, separators=(",", ":")).encode() + END)
        record = await records.next()
        assert (record.status, record.outcome, record.error) == (200, Outcome.SHUT_DOWN, SAID)
        assert router.outcomes == [Outcome.CANCELLED]
        router.assert_idle()
        writer.close()
        await client.close()
