"""Limits of a key over time that the test sets; every figure is worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.auth.keys import Limits
from gateway.auth.limits import LocalLimiter
from gateway.errors import RateLimited


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def refused(limiter: LocalLimiter, limits: Limits, tokens: int = 0, key: str = "a") -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        limiter.admit(key, limits, tokens)
    return caught.value


def test_requests_a_minute() -> None:
    clock, limits = Clock(), Limits(requests_per_minute=3)
    limiter = LocalLimiter(clock)
    for _ in range(3):
        limiter.admit("a", limits, 0)
    error = refused(limiter, limits)
    assert (error.status, error.retry_after) == (429, 20.0)  # one request each 60/3 s
    assert "3 requests a minute" in error.message
    limiter.admit("b", limits, 0)  # another key is another bucket
    clock.now += 19
    assert refused(limiter, limits).retry_after == pytest.approx(1.0)
    clock.now += 1
    limiter.admit("a", limits, 0)
    clock.now += 3600
    for _ in range(3):  # a quiet hour saves up one minute's worth, no more
        limiter.admit("a", limits, 0)
    refused(limiter, limits)


def test_tokens_a_minute_count_what_the_engine_counted() -> None:
    clock, limits = Clock(), Limits(tokens_per_minute=600)
    limiter = LocalLimiter(clock)
    ticket = limiter.admit("a", limits, 100)  # 500 left
    limiter.settle(ticket, 900)  # really 900: 300 in debt
    error = refused(limiter, limits, 0)
    assert error.retry_after == 30.0  # 10 tokens a second
    clock.now += 30
    limiter.settle(limiter.admit("a", limits, 0), 0)
    assert refused(limiter, limits, 100).retry_after == 10.0


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    limiter, limits = LocalLimiter(Clock()), Limits(tokens_per_minute=600)
    ticket = limiter.admit("a", limits, 600)
    refused(limiter, limits, 1)
    limiter.settle(ticket, 50)
    limiter.admit("a", limits, 550)
    refused(limiter, limits, 1)


def test_a_request_larger_than_a_minute_passes_when_the_bucket_is_full() -> None:
    clock, limits = Clock(), Limits(tokens_per_minute=600)
    limiter = LocalLimiter(clock)
    limiter.settle(limiter.admit("a", limits, 6000), 6000)
    assert refused(limiter, limits, 6000).retry_after == 600.0
    clock.now += 600
    limiter.admit("a", limits, 6000)


def test_parallel_requests() -> None:
    limiter, limits = LocalLimiter(Clock()), Limits(max_parallel=2)
    first, _ = limiter.admit("a", limits, 0), limiter.admit("a", limits, 0)
    assert "2 requests under way" in refused(limiter, limits).message
    limiter.settle(first, 0)
    limiter.settle(first, 0)  # the same ticket twice frees one place
    limiter.admit("a", limits, 0)
    refused(limiter, limits)
    assert limiter.in_flight("a") == 2


def test_a_refusal_takes_nothing() -> None:
    clock, limits = Clock(), Limits(requests_per_minute=60, tokens_per_minute=600, max_parallel=5)
    limiter = LocalLimiter(clock)
    limiter.admit("a", limits, 600)
    for _ in range(200):
        refused(limiter, limits, 300)  # for want of tokens
    clock.now += 30
    limiter.admit("a", limits, 300)  # and there still is a request and a place
    assert limiter.in_flight("a") == 2


def test_keys_that_are_gone_are_forgotten_when_their_requests_are() -> None:
    limiter, limits = LocalLimiter(Clock()), Limits(max_parallel=1)
    ticket = limiter.admit("a", limits, 0)
    limiter.forget(frozenset())
    assert limiter.in_flight("a") == 1
    limiter.settle(ticket, 0)
    limiter.forget(frozenset())
    assert limiter._accounts == {}
