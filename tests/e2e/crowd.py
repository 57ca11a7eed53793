"""A hundred engines in one process, for what must stay readable with a hundred workers.

    python -m tests.e2e.crowd NUMBER FILE

writes their ports to FILE, one a line, and serves. An engine streams as an OpenAI-compatible server does,
remembers which blocks of 16 tokens it has seen, reports in `usage` what it found of them, and has vLLM's
metrics. It publishes no KV events.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "sim"
BLOCK = 16
CAPACITY = 400
SECONDS_A_TOKEN = 0.0002


@dataclass
class Engine:
    running: int = 0
    prompt_tokens: int = 0
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Hashes of blocks and all before them; the least recently used one first."""

    def cached(self, tokens: list[int]) -> int:
        """Leading tokens found; all of them are held from now on. The last token is always computed."""
        keys = [hash(tuple(tokens[:end])) for end in range(BLOCK, len(tokens), BLOCK)]
        found = next((depth for depth, key in enumerate(keys) if key not in self.held), len(keys))
        for key in keys:
            self.held[key] = None
            self.held.move_to_end(key)
        while len(self.held) > CAPACITY:
            self.held.popitem(last=False)
        return found * BLOCK

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{MODEL}"}}'
        return "\n".join(
            [
                f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{CAPACITY}"}} 1.0',
                f"vllm:num_requests_running{label} {self.running}",
                f"vllm:num_requests_waiting{label} 0",
                f"vllm:kv_cache_usage_perc{label} {len(self.held) / CAPACITY}",
                f"vllm:num_preemptions_total{label} 0",
                f"vllm:prompt_tokens_total{label} {self.prompt_tokens}",
                "",
            ]
        )


def make_app(engines: dict[int, Engine]) -> Starlette:
    def engine(request: Request) -> Engine:
        return engines[request.scope["server"][1]]

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        return StreamingResponse(_answer(engine(request), body), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/health", lambda _: PlainTextResponse("")),
            Route("/v1/models", models),
            Route("/metrics", lambda request: PlainTextResponse(engine(request).metrics())),
            Route("/v1/completions", complete, methods=["POST"]),
        ]
    )


async def _answer(engine: Engine, body: dict[str, Any]) -> AsyncIterator[str]:
    tokens: list[int] = body["prompt"]
    cached = engine.cached(tokens)
    engine.prompt_tokens += len(tokens)
    engine.running += 1
    try:
        await asyncio.sleep(SECONDS_A_TOKEN * (len(tokens) - cached))
        for _ in range(body["max_tokens"]):
            yield _event(choices=[{"index": 0, "text": " word", "finish_reason": None}])
            await asyncio.sleep(0.02)
        usage = {
            "prompt_tokens": len(tokens), "completion_tokens": body["max_tokens"],
            "total_tokens": len(tokens) + body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip
        yield _event(choices=[], usage=usage)
        yield "data: [DONE]\n\n"
    finally:
        engine.running -= 1


def _event(**fields: object) -> str:
    head = {"id": "c", "object": "text_completion", "created": 1, "model": MODEL}
    return f"data: {json.dumps({**head, **fields})}\n\n"


def main(number: int, ports: Path) -> None:
    sockets = []
    for _ in range(number):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        sockets.append(listener)
    numbers = [listener.getsockname()[1] for listener in sockets]
    part = ports.with_suffix(".part")
    part.write_text("\n".join(map(str, numbers)))
    part.rename(ports)
    app = make_app({port: Engine() for port in numbers})
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", loop="uvloop"))
    asyncio.run(server.serve(sockets=sockets))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
