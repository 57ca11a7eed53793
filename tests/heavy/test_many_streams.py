"""2,000 streams in one burst through one process: none fails, and each costs little memory."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Callable

import psutil
import pytest

from tests.conftest import Spawn
from tests.faults import DONE, SSE_HEAD, FaultyEngine, Turn, chunk, token

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]

STREAMS = 2000
TOKENS = 20
KIB_PER_STREAM = 64
"""What one open stream may cost the gateway: two sockets' buffers in user space, its parsers, its tasks."""


@pytest.mark.timeout(900)
async def test_two_thousand_streams(spawn: Spawn, free_port: Callable[[], int]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    open_streams = 0
    all_open, go_on = asyncio.Event(), asyncio.Event()

    async def holds(turn: Turn) -> None:
        nonlocal open_streams
        await turn.write(SSE_HEAD + chunk(token("0")))
        open_streams += 1
        if open_streams == STREAMS:
            all_open.set()
        await go_on.wait()
        for n in range(1, TOKENS):
            await turn.write(chunk(token(str(n))))
        await turn.write(chunk(DONE) + b"0\r\n\r\n")

    async def one(port: int) -> int:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((head + body).encode())
        await reader.readuntil(b'"content": "0"')
        rest = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return 1 + rest.count(b'"content"')

    async with FaultyEngine(holds, model="m") as engine:
        port, admin = free_port(), free_port()
        process = spawn(
            "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin), "--worker", engine.url,
            "--tokenizer", "m=bytes", "--no-access-log", "--connect-timeout", "30",
        )  # fmt: skip
        await asyncio.to_thread(process.wait_http, f"http://127.0.0.1:{port}/ready", timeout=100)
        ps = psutil.Process(process.pid)
        before = ps.memory_info().rss
        tasks = [asyncio.create_task(one(port)) for _ in range(STREAMS)]
        await asyncio.wait_for(all_open.wait(), 600)
        per_stream = (ps.memory_info().rss - before) / STREAMS / 1024
        go_on.set()
        assert await asyncio.gather(*tasks) == [TOKENS] * STREAMS
        print(f"{per_stream:.1f} KiB a stream")
        assert per_stream < KIB_PER_STREAM
