from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.replay.ceilings import ceilings, clairvoyant_hits, infinite_hits, lru_hits
from benchmarks.replay.content import Content

LINES = [([1, 2], 2), ([3, 4], 2), ([1, 2], 2), ([5, 6], 2), ([3, 4], 2), ([1, 2], 2)]


def test_an_infinite_cache_serves_all_but_the_first_time() -> None:
    assert infinite_hits(LINES) == 6


def test_least_recently_used_goes_first() -> None:
    # 1 2 | 3 4 | 1 2 hit | 5 6 push out 3 4 | 3 4 push out 1 2 | 1 2 miss
    assert lru_hits(LINES, 4) == 2
    assert lru_hits(LINES, 6) == 6


def test_a_prefix_outlives_its_tail() -> None:
    # three blocks for five: of 1 2 3 the tail goes
    assert lru_hits([([1, 2, 3], 3), ([4], 1), ([1, 2, 3], 3)], 3) == 2


def test_who_sees_the_future_keeps_what_comes_back() -> None:
    # 5 6 never come back, so they are not kept
    assert clairvoyant_hits(LINES, 4) == 6
    # room for one of the two pairs: 1 2 come back the sooner and then again
    assert clairvoyant_hits(LINES, 2) == 4


def test_only_what_may_be_served_counts() -> None:
    assert infinite_hits([([1, 2, 3], 2), ([1, 2, 3], 2)]) == 2


def test_rates_are_of_prompt_tokens(toy: Callable[..., Content]) -> None:
    content = toy([(0.0, "a b", 1, None), (1.0, "a b", 1, None)])
    found = ceilings(content, 100)
    assert (found.infinite, found.pooled_lru, found.clairvoyant) == pytest.approx((32 / 66,) * 3)
