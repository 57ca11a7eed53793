"""A mock engine that costs next to nothing: canned answers from a bare asyncio protocol.

    python -m benchmarks.wire.engine --port 9001 --chunks 100 --interval 0.02

It answers what routers ask of an engine (`/health`, `/v1/models`, `/metrics`…) and every POST that generates:
with one JSON body, or, where the request says `"stream": true`, with `--chunks` events, one each `--interval`
seconds. Other POSTs are 404: routers that ask for `/tokenize` or `/render` first go on without, and a stream
in their place would hold them up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

import uvloop

from benchmarks.ending import in_one_line
from benchmarks.wire.framing import body_length

MODEL = "mock"
USAGE = {"prompt_tokens": 200, "completion_tokens": 16, "total_tokens": 216}
"""As engines report it that were not asked for cached tokens: this one has no cache to tell of."""
ANSWER = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "x" * 64}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    }
).encode()
MODELS = json.dumps(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "mock", "max_model_len": 32768}]}
).encode()
METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100000"} 1.0\n'
INFO = json.dumps({"model_path": MODEL, "tokenizer_path": MODEL, "served_model_name": MODEL}).encode()


def _event(content: str, usage: object = None, choices: bool = True) -> bytes:
    chunk = {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}] if choices else [],
        "usage": usage,
    }
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


GENERATES = (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages")
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CHUNK = _event(" token")
LAST = _event("", USAGE, choices=False) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)


class Engine(asyncio.Protocol):
    def __init__(self, chunks: int, interval: float) -> None:
        self._chunks, self._interval = chunks, interval
        self._loop = asyncio.get_running_loop()
        self._pending = b""
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False

    def data_received(self, data: bytes) -> None:
        data = self._pending + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            length = body_length(head) or 0
            if len(data) < end + 4 + length:
                break
            self._answer(head, data[end + 4 : end + 4 + length])
            data = data[end + 4 + length :]
        self._pending = data

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post") and head.split(b" ", 2)[1] not in GENERATES:
            self._transport.write(NOT_FOUND)
        elif head.startswith(b"post"):
            if b'"stream": true' in body or b'"stream":true' in body:
                self._transport.write(STREAM_HEAD + CHUNK)
                self._loop.call_later(self._interval, self._next, self._chunks - 1)
            else:
                self._transport.write(whole(ANSWER))
        elif head.startswith(b"get /v1/models"):
            self._transport.write(whole(MODELS))
        elif head.startswith(b"get /metrics"):
            self._transport.write(whole(METRICS, b"text/plain"))
        elif b"info" in head.split(b" ", 2)[1]:
            self._transport.write(whole(INFO))
        else:
            self._transport.write(whole(b"{}"))

    def _next(self, left: int) -> None:
        if not self._open:
            return
        if left:
            self._transport.write(CHUNK)
            self._loop.call_later(self._interval, self._next, left - 1)
        else:
            self._transport.write(LAST)


async def _main(port: int, chunks: int, interval: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(chunks, interval), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


@in_one_line("it served until now")
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--interval", type=float, default=0.02)
    arguments = parser.parse_args()
    uvloop.run(_main(arguments.port, arguments.chunks, arguments.interval))


if __name__ == "__main__":
    main()
