"""Headers of the hot path, both ways."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection

from gateway.auth.authenticator import CREDENTIALS
from gateway.routing.route import Route
from gateway.upstream.headers import HOP_BY_HOP, Headers, end_to_end, value_of

_ALWAYS = HOP_BY_HOP | frozenset(
    (
        b"host",
        b"content-length",
        b"content-encoding",  # bodies go on decoded
        b"expect",  # answered by our server already
        b"x-request-id",
    )
)
_TRACE_CONTEXT = frozenset((b"traceparent", b"tracestate"))
_DROPPED = {
    (readable, anonymous, traced): _ALWAYS
    | (frozenset((b"accept-encoding",)) if readable else frozenset())
    | (CREDENTIALS if anonymous else frozenset())
    | (_TRACE_CONTEXT if traced else frozenset())
    for readable in (False, True)
    for anonymous in (False, True)
    for traced in (False, True)
}
_RANDOM, _AT_ONCE = 16, 64
"""Bytes of a new request's name; names."""
_ID = re.compile(rb"[!-~]{1,128}")
"""What is fit to be logged and echoed."""
_TRACEPARENT = re.compile(
    rb"[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})(-.*)?"
)


def new_request_id() -> str:
    return os.urandom(_RANDOM).hex()


class RequestIds:
    """The same as `new_request_id`, of which the system is asked for many at a time: each would be a call of
    it. Not to be shared by processes."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def __call__(self) -> str:
        if not self._left:
            drawn = os.urandom(_RANDOM * _AT_ONCE).hex()
            self._left = [drawn[at : at + 2 * _RANDOM] for at in range(0, len(drawn), 2 * _RANDOM)]
        return self._left.pop()


def fit_id(given: bytes | None) -> bytes | None:
    """`given`, a client's ``X-Request-Id``, where it is fit to be a request's name; else None."""
    return None if given is None or _ID.fullmatch(given) is None else given


def request_id(given: bytes | None, mint: Callable[[], str]) -> bytes:
    """The client's own (`given`, its ``X-Request-Id``) where it is fit, else a new one."""
    return fit_id(given) or mint().encode()


def trace_id(headers: Headers) -> str:
    """Of the sampled trace that it belongs to (W3C Trace Context, `traceparent`); else empty."""
    given = value_of(headers, b"traceparent") or b""
    match = _TRACEPARENT.fullmatch(given)
    if match is None or not int(match["flags"], 16) & 1:
        return ""
    return match["trace"].decode()


def own_headers(identifier: bytes, trace: Collection[tuple[bytes, bytes]], dp_rank: int | None) -> Headers:
    """Those that a worker gets beside `lasting_headers`: `trace` in place of the client's, and which rank of
    an engine that has several is meant."""
    rank = [] if dp_rank is None else [(b"x-data-parallel-rank", b"%d" % dp_rank)]
    return [*trace, *rank, (b"x-request-id", identifier)]


def lasting_headers(
    headers: Headers,
    *,
    blocked: Collection[bytes],
    readable: bool,
    with_authorization: bool,
    own_authorization: bytes | None,
    traced: bool,
    via: bytes | None = None,
) -> Headers:
    """The client's `headers` as a worker gets them. `readable`: the answer must not be compressed, for its
    usage is read in passing. `own_authorization` goes in place of the client's words. `traced`: the client's
    own trace is left out. `via` is added."""
    drop = _DROPPED[readable, not with_authorization or own_authorization is not None, traced]
    if blocked:
        drop = drop.union(blocked)
    out = end_to_end(headers, drop)
    for header in out:
        if header[0].find(b"_") >= 0:
            # servers that read `_` as `-` would take these for the ones that are dropped
            out = [header for header in out if header[0].replace(b"_", b"-") not in drop]
            break
    if readable:
        out.append((b"accept-encoding", b"identity"))
    if own_authorization is not None:
        out.append((b"authorization", own_authorization))
    if via is not None:
        out.append((b"via", via))
    return out


def answer_headers(route: Route, identifier: bytes, *, worker: bool = True) -> Headers:
    """What every answer from a worker carries; where `worker`, also which one that was. Of a prompt that was
    not read nobody says how long it is."""
    headers = [(b"x-request-id", identifier)]
    if worker:
        headers.append((b"x-gateway-worker", route.worker.encode("latin-1", "replace")))
    if route.prompt_tokens:
        headers.append((b"x-gateway-prompt-tokens", b"%d" % route.prompt_tokens))
    headers.append((b"x-gateway-matched-tokens", b"%d" % route.matched_tokens))
    return headers
