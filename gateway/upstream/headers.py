"""Which headers cross a proxy. Names are lower-case bytes, as in ASGI; order and duplicates are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

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


def connection_named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Names that ``Connection`` declares to be for this hop only."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named) - _NEVER_NAMED


def end_to_end(headers: Headers, drop: frozenset[bytes]) -> Headers:
    """`headers` without the hop-by-hop ones, those that ``Connection`` names, and `drop`.

    `drop` should contain HOP_BY_HOP: it is joined by the caller once, not here for every message.
    """
    named = connection_named(headers)
    if named:
        return [h for h in headers if h[0] not in drop and h[0] not in named]
    return [h for h in headers if h[0] not in drop]


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """The first value of that name."""
    for key, value in headers:
        if key == name:
            return value
    return None
