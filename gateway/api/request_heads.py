"""Which request heads may stand, which are refused, and how that is said: pure, for gateway.api.protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPMethod, HTTPStatus
from itertools import chain
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

import msgspec
from httptools import HttpParserError, HttpParserInvalidMethodError, HttpRequestParser, parse_url

from gateway.upstream.headers import Headers


class RequestHead(msgspec.Struct, frozen=True):
    """One that may stand, without its headers. `path` is decoded; `raw_path` and `query` are as they came."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    version: str
    keep_alive: bool
    expects_100: bool
    notes: dict[str, Any] = msgspec.field(default_factory=dict)
    """What an application has made of it and its headers, the length of the body aside: for those that come
    again, and then say the same."""


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    message: str


MALFORMED = Refusal(400, "bad_request", "this is not a well-formed HTTP request")
TUNNEL = Refusal(405, "method_not_allowed", "this server opens no tunnels")
METHOD = Refusal(501, "not_implemented", "this server does not know that method")
VERSION = Refusal(505, "http_version_not_supported", "this server speaks HTTP/1.1 and HTTP/1.0")
LARGE = Refusal(431, "headers_too_large", "the request's line and headers are too large")
FRAMING = Refusal(431, "headers_too_large", "the request's trailers or chunk lines are too large")
SLOW = Refusal(408, "request_timeout", "the request's headers did not arrive in time")
FULL = Refusal(503, "too_many_connections", "this server has as many connections as it may")

_name = itemgetter(0)
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(:[0-9]*)?")
"""RFC 9110, section 7.2: what RFC 3986 calls a host, and a port."""
_BAD_VERSION = "Invalid HTTP version"
"""How the parser calls a version that there is not, such as 1.2."""
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}) /[^\s]* HTTP/1\.[0-9]\r?\n")
_METHODS = frozenset(method.value.encode() for method in HTTPMethod)


def judged(
    parser: HttpRequestParser, url: bytes, headers: Headers, *, max_bytes: int, max_headers: int
) -> RequestHead | Refusal:
    """The head that `parser` has just read whole. Raises HttpParserError for a target that is none."""
    method, version = parser.get_method(), parser.get_http_version()
    found = fault(method, url, version, headers, max_bytes=max_bytes, max_headers=max_headers)
    if found is not None:
        return found
    path, raw_path, query = _paths(url)
    return RequestHead(
        method=method.decode("ascii"),
        path=path,
        raw_path=raw_path,
        query=query,
        version=version,
        keep_alive=version == "1.1" and parser.should_keep_alive(),
        expects_100=expects_100(headers),
    )


@lru_cache(maxsize=64)
def _paths(url: bytes) -> tuple[str, bytes, bytes]:
    """(path, decoded; path as it came; query) of a request's target: nearly all ask for one of a few. Raises
    HttpParserError."""
    parts = parse_url(url)
    path = parts.path.decode("ascii")
    return unquote(path) if "%" in path else path, parts.path, parts.query or b""


def fault(
    method: bytes, url: bytes, version: str, headers: Headers, *, max_bytes: int, max_headers: int
) -> Refusal | None:
    """Of a head that two servers could read in two ways, or that is too large. Names in lower case."""
    if version not in ("1.1", "1.0"):
        return VERSION
    if method == b"CONNECT":
        return TUNNEL
    size = len(url) + 4 * len(headers) + sum(map(len, chain.from_iterable(headers)))
    if size > max_bytes or len(headers) > max_headers:
        return LARGE
    names = list(map(_name, headers))
    hosts, lengths = names.count(b"host"), names.count(b"content-length")
    if hosts > 1 or (hosts == 0 and version == "1.1") or lengths > 1 or names.count(b"origin") > 1:
        return MALFORMED
    if hosts and _HOST.fullmatch(headers[names.index(b"host")][1]) is None:
        return MALFORMED
    if b"transfer-encoding" in names:
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        if codings != [b"chunked"] or lengths or version != "1.1":
            return MALFORMED
    return None


def expects_100(headers: Headers) -> bool:
    if b"expect" not in map(_name, headers):
        return False
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def unreadable(error: HttpParserError, data: bytes, *, in_head: bool) -> Refusal:
    """What the client is told where the parser gives up in `data`."""
    if in_head and isinstance(error, HttpParserInvalidMethodError):
        line = _REQUEST_LINE.match(data)
        # behind a request of a known method it is rubbish
        return METHOD if line is not None and line[1] not in _METHODS else MALFORMED
    return VERSION if str(error) == _BAD_VERSION else MALFORMED


def written(refusal: Refusal, headers: Headers) -> bytes:
    """The whole answer, with these headers beside its own; its connection ends behind it."""
    body = msgspec.json.encode(
        {
            "error": {
                "message": refusal.message,
                "type": "server_error" if refusal.status == 503 else "invalid_request_error",
                "param": None,
                "code": refusal.code,
            }
        }
    )
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n"
    )
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"%s%s\r\n%s" % (head.encode(), lines, body)
