"""The ways an answer's body goes on to the client: as it comes, whole, or replaced. Event by event is
gateway.upstream.sse."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import UpstreamProtocolError
from gateway.types import Usage
from gateway.upstream.redact import Redactor
from gateway.upstream.usage import is_json, read_usage
from gateway.upstream.wire import Framing

NO_SUCH_PATH = b'{"detail":"Not Found"}'
"""FastAPI's and Starlette's answer to a path without a route, byte for byte: engines here are made with them.
A 404 of an engine's own, of an unknown model for one, has another body."""


class Body(Protocol):
    """`feed` takes what one read brought and returns what goes on now. Raises UpstreamProtocolError."""

    usage: Usage | None
    events: int
    """Pieces of the answer that count as progress: its tokens, nearly."""

    def feed(self, data: bytes, last: bool) -> bytes: ...


class Passing:
    """As it comes."""

    usage: Usage | None = None

    def __init__(self) -> None:
        self.events = 0

    def feed(self, data: bytes, last: bool) -> bytes:
        self.events += bool(data)
        return data


class Whole:
    """Kept until it is complete, so that a worker that dies inside it leaves nothing half said, and fields
    can be taken out. A plain JSON answer arrives in one piece anyway, when all of it has been generated."""

    def __init__(self, framing: Framing, limit: int, redactor: Redactor, *, read: bool = True) -> None:
        self.usage: Usage | None = None
        self.events = 0
        self._framing = framing
        self._limit = limit
        self._redactor = redactor
        self._read = read
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, last: bool) -> bytes:
        if data:
            self.events = 1
            self._size += len(data)
        if self._size > self._limit:
            raise UpstreamProtocolError(f"an answer of more than {self._limit} bytes")
        if not last:
            self._parts.append(data)
            return b""
        body = b"".join((*self._parts, data)) if self._parts else data
        if not self._read:
            return body
        if self._framing is Framing.CLOSE and not is_json(body):
            # only its own syntax can tell that such an answer was cut off
            raise UpstreamProtocolError("a JSON answer that breaks off")
        self.usage = read_usage(body)
        return self._redactor.redact(body) if self._redactor.concerns(body) else body


class Cleared:
    """JSON that is read for nothing but fields to take out. One with more than `limit` bytes passes as it
    comes: a batch of embeddings may be as large as it likes, and names no such field."""

    usage: Usage | None = None

    def __init__(self, limit: int, redactor: Redactor) -> None:
        self.events = 0
        self._limit = limit
        self._redactor = redactor
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, last: bool) -> bytes:
        self.events += bool(data)
        self._parts.append(data)
        self._size += len(data)
        if not last and self._size <= self._limit:
            return b""
        body = b"".join(self._parts)
        self._parts.clear()
        if self._size > self._limit:
            return body
        return self._redactor.redact(body) if self._redactor.concerns(body) else body


class Unserved:
    """Of a 404 as long as `NO_SUCH_PATH`: where it is that, `instead` goes on."""

    usage: Usage | None = None

    def __init__(self, instead: bytes) -> None:
        self.events = 0
        self._instead = instead
        self._body = b""

    def feed(self, data: bytes, last: bool) -> bytes:
        self.events = 1
        self._body += data
        if not last:
            return b""
        return self._instead if self._body == NO_SUCH_PATH else self._body
