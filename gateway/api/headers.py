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
_ID = re.compile(rb"[!-~]{1,128}")
"""What is fit to be logged and echoed."""
_TRACEPARENT = re.compile(
    rb"[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})(-.*)?"
)


def new_request_id() -> str:
    return os.urandom(16).hex()


def request_id(given: bytes | None, mint: Callable[[], str]) -> bytes:
    """The client's own (`given`, its ``X-Request-Id``) where it is fit, else a new one."""
    return mint().encode() if given is None or _ID.fullmatch(given) is None else given


def trace_id(headers: Headers) -> str:
    """Of the sampled trace that it belongs to (W3C Trace Context, `traceparent`); else empty."""
    given = value_of(headers, b"traceparent") or b""
    match = _TRACEPARENT.fullmatch(given)
    if match is None or not int(match["flags"], 16) & 1:
        return ""
    return match["trace"].decode()


def headers_to_worker(
    headers: Headers,
    *,
    identifier: bytes,
    blocked: Collection[bytes],
    readable: bool,
    with_authorization: bool,
    own_authorization: bytes | None = None,
    trace: Collection[tuple[bytes, bytes]] = (),
    dp_rank: int | None = None,
) -> Headers:
    """The client's headers as a worker gets them. `readable`: the answer must not be compressed, for its
    usage is read in passing. `own_authorization` and `trace` go in place of the client's words. `dp_rank`
    pins it to one rank of an engine that has several."""
    drop = _DROPPED[readable, not with_authorization or own_authorization is not None, bool(trace)]
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
    out.extend(trace)
    if dp_rank is not None:
        out.append((b"x-data-parallel-rank", b"%d" % dp_rank))
    out.append((b"x-request-id", identifier))
    return out


def answer_headers(route: Route, identifier: bytes) -> Headers:
    """What every answer from a worker carries."""
    return [
        (b"x-request-id", identifier),
        (b"x-gateway-worker", route.worker.encode("latin-1", "replace")),
        (b"x-gateway-prompt-tokens", b"%d" % route.prompt_tokens),
        (b"x-gateway-matched-tokens", b"%d" % route.matched_tokens),
    ]
