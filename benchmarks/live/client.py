"""One streamed chat over HTTP on bare asyncio, so that the client takes little of the machine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import httptools

Message = dict[str, str]


@dataclass(slots=True)
class Heard:
    """`first` and `end` are the loop's times; None where there was no token, or no whole answer."""

    status: int = 0
    text: str = ""
    first: float | None = None
    end: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Reader:
    """httptools' callbacks, and the events in the body."""

    heard: Heard
    parts: list[str] = field(default_factory=list)
    pending: bytes = b""
    whole: bool = False

    def on_body(self, body: bytes) -> None:
        *lines, self.pending = (self.pending + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._event(json.loads(line[6:]))

    def on_message_complete(self) -> None:
        self.whole = True

    def _event(self, event: dict[str, object]) -> None:
        choices, usage = event.get("choices"), event.get("usage")
        if isinstance(choices, list) and choices:
            content = choices[0].get("delta", {}).get("content")
            if content:
                self.parts.append(content)
                if self.heard.first is None:
                    self.heard.first = asyncio.get_running_loop().time()
        if isinstance(usage, dict):
            self.heard.prompt_tokens = usage["prompt_tokens"]
            self.heard.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class Client:
    """Keeps idle connections, one pool for each port of this machine."""

    def __init__(self, timeout: float = 120.0) -> None:
        self._timeout = timeout
        self._idle: dict[int, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def chat(self, port: int, model: str, messages: list[Message], max_tokens: int, user: str) -> Heard:
        """Whatever happens is in what was heard: nothing is raised for a router's failures."""
        body = json.dumps(
            {
                "model": model,
                "messages": messages,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "user": user,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        heard = Heard()
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(port, head.encode() + body, heard)
        except (OSError, TimeoutError, httptools.HttpParserError, asyncio.IncompleteReadError):
            heard.end = None
        return heard

    async def _exchange(self, port: int, request: bytes, heard: Heard) -> None:
        idle = self._idle.setdefault(port, [])
        while idle and idle[-1][0].at_eof():
            idle.pop()[1].close()
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            events = _Reader(heard)
            parser = httptools.HttpResponseParser(events)
            while not events.whole:
                data = await reader.read(65_536)
                if not data:
                    raise ConnectionResetError("it closed within an answer")
                parser.feed_data(data)
        except BaseException:
            writer.close()
            raise
        heard.status = parser.get_status_code()
        heard.text = "".join(events.parts)
        heard.end = asyncio.get_running_loop().time()
        idle.append((reader, writer))

    def close(self) -> None:
        for connections in self._idle.values():
            for _reader, writer in connections:
                writer.close()
        self._idle.clear()
