"""Which headers cross a proxy. Names are lower-case bytes, as in ASGI; order and duplicates are kept."""

from __future__ import annotations

from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

line = b": ".join
"""One of them, as it goes on the wire."""

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110 §7.6.1: they speak of one connection, never of the message."""

# a Connection header that lists one of these would take away what the message means
_NEVER_NAMED = frozenset((b"host", b"content-length", b"content-type", b"content-encoding", b"authorization"))


_USUAL = frozenset((b"keep-alive", b"close"))


def end_to_end(headers: Headers, drop: frozenset[bytes]) -> Headers:
    """`headers` without `drop` and those that ``Connection`` declares to be for this hop only.

    `drop` should contain HOP_BY_HOP: it is joined by the caller once, not here for every message.
    """
    out: Headers = []
    named: set[bytes] = set()
    for header in headers:
        name = header[0]
        if name not in drop:
            out.append(header)
        elif name == b"connection" and header[1] not in _USUAL:
            named.update(token.strip().lower() for token in header[1].split(b","))
    named -= _NEVER_NAMED
    return [header for header in out if header[0] not in named] if named else out


_LENGTH_ENDS = b"ength: "
"""All of its name that does not differ in case, nearly."""
_SKIP = len(_LENGTH_ENDS)


def without_length(data: bytes, end: int) -> tuple[bytes, bytes]:
    """The head that ends at `end` of `data` without the value of its ``Content-Length``, and that value, as
    far as a first look can tell: `cuts_length` looks closely. Heads that differ elsewhere have two texts."""
    at = data.find(_LENGTH_ENDS, 0, end) + _SKIP
    if at < _SKIP:
        return data[:end], b""
    stop = data.find(b"\r", at, end + 1)
    return data[:at] + data[stop:end], data[at:stop]


def cuts_length(text: bytes) -> bool:
    """What was cut out of this text is really its length."""
    return text[: text.find(_LENGTH_ENDS) + _SKIP].lower().endswith(b"\r\ncontent-length: ")


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """The first value of that name."""
    for key, value in headers:
        if key == name:
            return value
    return None
