"""Short questions to engines beside requests: health, what they are, tokens. Whole answers.

They go over the connections of the requests themselves: what reaches an engine here reaches it there, and a
look at it costs a tenth of what a client library takes, which a hundred workers every two seconds add up to.
"""

from __future__ import annotations

import asyncio

from gateway.errors import UpstreamProtocolError, UpstreamTimeout
from gateway.types import EngineAnswer
from gateway.upstream.client import UpstreamClient
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.via import Via
from gateway.upstream.wire import Flow, ResponseHead, UpstreamRequest

MAX_ANSWER = 32 * 1024 * 1024
"""Bytes. The tokens of the longest prompts are some megabytes, an engine's metrics a fraction of one."""


class Visitor:
    """The client belongs to whoever made it."""

    def __init__(
        self, client: UpstreamClient, *, max_answer: int = MAX_ANSWER, via: Via | None = None
    ) -> None:
        self._client = client
        self._max_answer = max_answer
        self._via = via
        self.authorization: bytes | None = None
        """What engines are shown."""

    async def __call__(
        self, url: str, path: str, *, timeout: float, content: bytes | None = None
    ) -> EngineAnswer:
        """As `AskEngine` says."""
        headers = [(b"accept", b"*/*"), (b"user-agent", b"prefix-gateway")]
        if self._via is not None:
            headers.append((b"via", self._via.value))
        if self.authorization is not None:
            headers.append((b"authorization", self.authorization))
        if content is not None:
            headers.append((b"content-type", b"application/json"))
        method = b"GET" if content is None else b"POST"
        request = UpstreamRequest(method, path.encode(), headers, content or b"")
        limits = Timeouts(timeout, timeout, timeout, timeout, timeout)
        answer = _Whole(self._max_answer)
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            await self._client.exchange(url, request, answer, limits, deadline)
        except UpstreamTimeout as error:
            raise UpstreamTimeout(f"{path} timed out after {timeout} s", phase=error.phase) from error
        except UpstreamProtocolError as error:
            raise UpstreamProtocolError(f"{path}: {error.message}") from error
        return EngineAnswer(answer.status, answer.body())


class _Whole:
    """A sink that keeps it all, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.status = 0
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, head: ResponseHead, flow: Flow) -> None:
        self.status = head.status

    def on_body(self, data: bytes, last: bool) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            raise UpstreamProtocolError(f"an answer of more than {self._limit} bytes")

    def body(self) -> bytes:
        return b"".join(self._parts)
