"""How long after a client has left its worker is told, in each moment of a request: `make leaving`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import perf_counter

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Process, Spawn
from tests.faults import SSE_HEAD, FaultyEngine, Script, hangs, raw, streams_for_ever, token

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]

TIMES = 200
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"

MOMENTS: dict[str, tuple[Script, bool]] = {
    "stream, nothing yet": (hangs(), True),
    "JSON, nothing yet": (hangs(), False),
    "stream, head only": (raw(SSE_HEAD, then="hang"), True),
    "JSON, half": (raw(JSON_HEAD, then="hang"), False),
    "stream, running": (streams_for_ever(token("x")), True),
}


def request(*, stream: bool) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def leave(port: int, engine: FaultyEngine, *, stream: bool, reads: bool) -> float:
    """Seconds from a client's leaving to the end of its connection at the worker."""
    engine.arrived.clear()
    engine.gone.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(stream=stream))
    await asyncio.wait_for(engine.arrived.wait(), 30)
    if reads:
        await reader.readuntil(b"data: ")
    left = perf_counter()
    writer.close()
    await asyncio.wait_for(engine.gone.wait(), 30)
    return perf_counter() - left


async def queued(admin: str, wanted: int) -> None:
    """Until so many requests wait for a worker."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client, asyncio.timeout(30):
        while True:
            families = text_string_to_metric_families((await client.get(f"{admin}/metrics")).text)
            found = sum(s.value for f in families for s in f.samples if s.name == "gateway_queue_requests")
            if found == wanted:
                return
            await asyncio.sleep(0.005)


async def leave_the_queue(port: int, admin: str, process: Process) -> float:
    """Seconds from a waiting client's leaving to its line in the access log, the last that a request does."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(stream=True))
    await queued(admin, 1)
    with process.log.open("rb") as log:
        log.seek(0, 2)
        left = perf_counter()
        writer.close()
        async with asyncio.timeout(30):
            while b'"cancelled"' not in log.read():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.0005)
        return perf_counter() - left


@pytest.mark.timeout(600)
async def test_how_soon_a_worker_is_told(spawn: Spawn, free_port: Callable[[], int]) -> None:
    taken: dict[str, list[float]] = {}
    async with FaultyEngine(hangs(), model="m") as engine:
        port, admin = free_port(), free_port()
        process = spawn(
            "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin),
            "--worker", f"{engine.url},max_requests=1", "--tokenizer", "m=bytes", "--queue-wait", "60",
        )  # fmt: skip
        await asyncio.to_thread(process.wait_http, f"http://127.0.0.1:{port}/ready", timeout=100)
        for moment, (script, stream) in MOMENTS.items():
            engine.scripts = [script]
            reads = moment == "stream, running"
            taken[moment] = [await leave(port, engine, stream=stream, reads=reads) for _ in range(TIMES)]
        engine.scripts = [hangs()]
        _, holder = await asyncio.open_connection("127.0.0.1", port)
        holder.write(request(stream=True))
        engine.arrived.clear()
        await asyncio.wait_for(engine.arrived.wait(), 30)
        url = f"http://127.0.0.1:{admin}"
        taken["in the queue"] = [await leave_the_queue(port, url, process) for _ in range(TIMES)]
        holder.close()
    print()
    for moment, seconds in taken.items():
        ordered = sorted(seconds)
        p50, p99, most = (ordered[int(len(ordered) * q)] * 1e3 for q in (0.5, 0.99, 0.999))
        print(f"{moment:20} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  longest {most:6.2f} ms")
        # 100 ms is the claim; a machine at work on other things may be late, but never by seconds
        assert ordered[-1] < 2.0, moment
