"""After a try: how it ended, and whether another worker may have one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import GatewayError, UpstreamTimeout
from gateway.routing.route import Outcome
from gateway.upstream.headers import Headers, value_of


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    tries: int = 3
    base: float = 0.025
    """Seconds before the second try, in the mean; doubles with every further one."""
    longest: float = 0.5

    def pause(self, failures: int, rng: Callable[[], float]) -> float:
        """Seconds to wait after the `failures`-th failure: half to one and a half times the nominal, so that
        what failed together does not come back together."""
        nominal = min(self.longest, self.base * 2.0 ** (failures - 1))
        return float(nominal * (0.5 + rng()))


_SAYS_BUSY = re.compile(rb"busy|overload|backlog|queue[^\"]{0,40}full|too many requests", re.IGNORECASE)
"""vLLM (0.32) answers 503 without Retry-After when a queue limit of its own is reached, and so does SGLang:
only their words tell it from an engine that is down."""


def outcome_of(
    status: int,
    headers: Headers,
    error: GatewayError | None,
    *,
    stream_error: bool = False,
    body: bytes = b"",
) -> Outcome:
    """`status`, `headers` and `body` are the worker's answer's (0 where there is none; the body of one that
    was withheld), `error` what broke."""
    if isinstance(error, UpstreamTimeout):
        return Outcome.TIMEOUT
    if error is not None or stream_error:
        return Outcome.UPSTREAM_ERROR
    if status == 429 or (status == 503 and _is_busy(headers, body)):
        return Outcome.BUSY
    if status >= 500 and status != 501:
        return Outcome.UPSTREAM_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK


def _is_busy(headers: Headers, body: bytes) -> bool:
    """A worker that says when to come back, or that it has too much to do, is not broken."""
    if value_of(headers, b"retry-after") is not None:
        return True
    kind = value_of(headers, b"content-type") or b""
    return kind.startswith(b"application/json") and _SAYS_BUSY.search(body) is not None


def retry_after_of(headers: Headers) -> float | None:
    """Seconds; None where it is absent or a date."""
    value = value_of(headers, b"retry-after")
    return float(value) if value is not None and value.isdigit() else None
