from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from benchmarks.wire.engine import Engine

pytestmark = pytest.mark.anyio


async def test_it_generates_and_knows_nothing_else() -> None:
    """Routers that ask for tokens first must go on at once, not read a stream in their place."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(chunks=3, interval=0.0), "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(base_url=base, trust_env=False) as client:
        whole = await client.post("/v1/chat/completions", json={"model": "mock"})
        stream = await client.post("/v1/chat/completions", json={"stream": True})
        other = [
            await client.post(path, json={"stream": True})
            for path in ("/tokenize", "/v1/chat/completions/render")
        ]
        health = await client.get("/health")
    assert whole.json()["choices"][0]["message"]["content"] == "x" * 64
    events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert [json.loads(event)["choices"] != [] for event in events[:-1]] == [True, True, True, False]
    assert events[-1] == "[DONE]"
    assert [answer.status_code for answer in (*other, health)] == [404, 404, 200]
