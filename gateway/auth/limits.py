"""How much one key may ask: token buckets and a count, here in this process.

A bucket holds at most one minute's worth and fills at an even rate (a leaky bucket as a meter: RFC 3290,
appendix A). Tokens are taken as an estimate when a request comes and put right when its engine has counted:
a bucket may fall below zero, and then the next request waits until the debt is paid. So over time nobody gets
more than the rate, however wrong the estimates are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.auth.keys import Limits
from gateway.errors import RateLimited

MINUTE = 60.0


@dataclass(slots=True)
class Bucket:
    """`level` at the time `at`, of a bucket that fills at `per_minute`/60 a second."""

    level: float
    at: float

    def fill(self, per_minute: float, now: float) -> None:
        self.level = min(per_minute, self.level + (now - self.at) * per_minute / MINUTE)
        self.at = now

    def wait_for(self, amount: float, per_minute: float) -> float:
        """Seconds until it holds `amount`."""
        return max(0.0, (amount - self.level) * MINUTE / per_minute)


@dataclass(slots=True)
class Account:
    requests: Bucket | None = None
    tokens: Bucket | None = None
    parallel: int = 0


@dataclass(slots=True)
class Ticket:
    """One admitted request's hold on its key's limits."""

    key: str
    limits: Limits
    tokens: int
    """Estimated, and taken."""
    settled: bool = field(default=False)
    shared: str = ""
    """Its name at a limiter that several processes share; empty where it is known here alone."""


class LocalLimiter:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    async def take(self, key: str, limits: Limits, tokens: int) -> Ticket:
        """As `admit`; a limiter that asks elsewhere has to wait for its answer."""
        return self.admit(key, limits, tokens)

    def admit(self, key: str, limits: Limits, tokens: int) -> Ticket:
        """Admits one request of about `tokens`. Raises RateLimited, and then nothing has been taken."""
        account = self._accounts.setdefault(key, Account())
        now = self._clock()
        if limits.max_parallel is not None and account.parallel >= limits.max_parallel:
            raise too_parallel(limits.max_parallel)
        requests = self._bucket(account.requests, limits.requests_per_minute, now)
        filled = self._bucket(account.tokens, limits.tokens_per_minute, now)
        if requests is not None and limits.requests_per_minute is not None:
            wait = requests.wait_for(1, limits.requests_per_minute)
            if wait > 0:
                raise too_fast("requests", limits.requests_per_minute, wait)
        if filled is not None and limits.tokens_per_minute is not None:
            # a request larger than the whole bucket would never pass: a full one is enough for it
            wait = filled.wait_for(min(tokens, limits.tokens_per_minute), limits.tokens_per_minute)
            if wait > 0:
                raise too_fast("tokens", limits.tokens_per_minute, wait)
            filled.level -= tokens
        if requests is not None:
            requests.level -= 1
        account.requests, account.tokens = requests, filled
        account.parallel += 1
        return Ticket(key, limits, tokens)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """It is over, and `tokens` were used. Once a ticket."""
        if ticket.settled:
            return
        ticket.settled = True
        account = self._accounts.get(ticket.key)
        if account is None:
            return
        account.parallel = max(0, account.parallel - 1)
        if account.tokens is not None:
            account.tokens.level -= tokens - ticket.tokens

    def give_back(self, ticket: Ticket) -> None:
        """It was refused after all, elsewhere or for another reason: as if it had not been taken."""
        if ticket.settled:
            return
        self.settle(ticket, 0)
        account = self._accounts.get(ticket.key)
        if account is not None and account.requests is not None:
            account.requests.level += 1

    async def close(self) -> None:
        """Nothing of it is anywhere else."""

    def in_flight(self, key: str) -> int:
        account = self._accounts.get(key)
        return 0 if account is None else account.parallel

    def forget(self, known: frozenset[str]) -> None:
        """Keys outside `known` are gone; what they still have under way ends as it would have."""
        for key in [k for k, a in self._accounts.items() if k not in known and a.parallel == 0]:
            del self._accounts[key]

    @staticmethod
    def _bucket(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket(per_minute, now)
        bucket.fill(per_minute, now)
        return bucket


def too_parallel(limit: int) -> RateLimited:
    return RateLimited(f"this API key has {limit} requests under way, as many as it may", retry_after=1.0)


def too_fast(what: str, limit: int, wait: float) -> RateLimited:
    return RateLimited(f"this API key may use {limit} {what} a minute", retry_after=wait)
