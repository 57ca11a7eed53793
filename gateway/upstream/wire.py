"""What goes to a worker, what comes back, and who takes it: the contracts of the upstream client."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

import msgspec

from gateway.upstream.headers import Headers
from gateway.upstream.lane import Lane
from gateway.upstream.origin import Origin

_WITHOUT_BODY = frozenset((b"GET", b"HEAD", b"OPTIONS", b"DELETE"))


class Framing(Enum):
    """What ends an answer's body."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    headers: Headers
    """Names in lower case; order and duplicates kept."""
    framing: Framing
    notes: dict[str, Any] = msgspec.field(default_factory=dict)
    """What has been made of it, date and length aside: for those that come again, and then say the same."""


class UpstreamRequest(msgspec.Struct, frozen=True):
    method: bytes
    target: bytes
    """Path and query, percent-encoded, without the origin's own prefix."""
    headers: Headers
    """All but ``host`` and ``content-length``, which are written here."""
    body: bytes = b""
    streamed: bool = False
    """The answer is expected piece by piece; it decides which first-byte limit holds."""
    written: bytes = b""
    """Headers beside those, each as it goes on the wire, line end included."""

    def head(self, origin: Origin) -> bytes:
        """The request up to its body, as it goes on the wire."""
        lines = self.written
        for header in self.headers:
            lines += b"%s: %s\r\n" % header
        if self.body or self.method not in _WITHOUT_BODY:
            lines += b"content-length: %d\r\n" % len(self.body)
        return b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s\r\n" % (
            self.method,
            origin.prefix,
            self.target,
            origin.host_header,
            lines,
        )


class Flow(Protocol):
    """Backpressure: stop and go for the bytes of one answer."""

    def pause(self) -> None: ...

    def resume(self) -> None:
        """Also where nothing is paused: it is also told when the client has gone, and from then on nothing is
        written to it by the short way that was open."""
        ...


class Sink(Protocol):
    """Takes one answer. Called from the event loop and must not block; an exception ends the exchange."""

    def on_head(self, head: ResponseHead, flow: Flow) -> None: ...

    def on_body(self, data: bytes, last: bool) -> Lane | None:
        """What one read brought. `last` comes once, with the final bytes, which may be none. Returns what may
        take the next read in its place, bytes as they come, if that begins with a chunk of the answer."""
        ...
