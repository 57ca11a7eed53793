"""After a try: how it ended, and whether another worker may have one."""

from __future__ import annotations

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


def outcome_of(
    status: int, headers: Headers, error: GatewayError | None, *, stream_error: bool = False
) -> Outcome:
    """`status` and `headers` are the worker's answer's (0 where there is none), `error` what broke."""
    if isinstance(error, UpstreamTimeout):
        return Outcome.TIMEOUT
    if error is not None or stream_error:
        return Outcome.UPSTREAM_ERROR
    if status == 429 or (status == 503 and value_of(headers, b"retry-after") is not None):
        # a worker that says when to come back is busy, not broken
        return Outcome.BUSY
    if status >= 500 and status != 501:
        return Outcome.UPSTREAM_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK


def retry_after_of(headers: Headers) -> float | None:
    """Seconds; None where it is absent or a date."""
    value = value_of(headers, b"retry-after")
    return float(value) if value is not None and value.isdigit() else None
