"""Reuse distances by hand, against a real LRU cache, and sampled against unsampled."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest
from xxhash import xxh3_64_intdigest

from gateway.index.reuse import ReuseSampler, bound, bucket_of
from gateway.types import BlockKey


def key(n: int) -> BlockKey:
    return BlockKey(xxh3_64_intdigest(n.to_bytes(8, "little")))


def lru_hits(prompts: list[list[BlockKey]], capacity: int) -> int:
    """Blocks that one LRU cache serves. A prompt looks up first, then its head becomes the most recent."""
    cache: OrderedDict[BlockKey, None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        for one in prompt:
            if one not in cache:
                break
            hits += 1
        for one in reversed(prompt):
            cache[one] = None
            cache.move_to_end(one)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def chats(seed: int, requests: int, conversations: int) -> list[list[BlockKey]]:
    """Conversations behind one shared system prompt, some far more active than others."""
    random = Random(seed)
    system = [key(n) for n in range(8)]
    tails: list[list[BlockKey]] = [[] for _ in range(conversations)]
    made: list[list[BlockKey]] = []
    fresh = 1000
    for _ in range(requests):
        tail = tails[min(int(random.expovariate(1 / (conversations / 6))), conversations - 1)]
        for _ in range(random.randint(1, 6)):
            tail.append(key(fresh))
            fresh += 1
        made.append([*system, *tail])
    return made


def test_distances_by_hand() -> None:
    a, b, c = ([key(n), key(n + 1)] for n in (0, 10, 20))
    sampler = ReuseSampler()
    for prompt in (a, b, c, a):
        sampler.observe(prompt)
    # since `a`: b's two blocks and c's two; `a`'s second block has its own first one in front as well
    curve = sampler.curve()
    assert curve.blocks == 8
    assert curve.distinct == 6
    assert curve.ceiling == 2 / 8
    assert curve.hit_rate(4) == 0.0
    assert curve.hit_rate(6) == 2 / 8
    assert curve.capacity_for(0.25) == 6
    assert curve.capacity_for(0.26) is None


def test_repeating_one_prompt_needs_a_cache_of_its_size() -> None:
    prompt = [key(n) for n in range(4)]
    sampler = ReuseSampler()
    for _ in range(10):
        sampler.observe(prompt)
    curve = sampler.curve()
    assert curve.ceiling == pytest.approx(36 / 40)
    assert curve.hit_rate(4) == pytest.approx(36 / 40)
    assert curve.hit_rate(2) == pytest.approx(18 / 40)


def test_generated_blocks_count_as_held_where_the_fleet_holds_them() -> None:
    prompt, generated = [key(n) for n in range(4)], [key(n) for n in range(4, 8)]
    sampler = ReuseSampler()
    sampler.observe(prompt)
    sampler.observe([*prompt, *generated, key(99)], held=8)
    # the second prompt finds its 4 old blocks and the 4 that decoding stored; its ninth is new
    assert sampler.curve().ceiling == 8 / 13


@pytest.mark.parametrize("distance", [0, 1, 7, 255, 1023, 12345.6])
def test_a_distance_falls_between_its_bucket_bounds(distance: float) -> None:
    bucket = bucket_of(distance)
    assert bound(bucket) <= distance + 1e-6 < bound(bucket + 1) + 1e-6


def test_unsampled_curve_is_the_lru_cache() -> None:
    prompts = chats(1, 600, 40)
    sampler = ReuseSampler(max_samples=1_000_000, enough=10**9)
    for prompt in prompts:
        sampler.observe(prompt)
    curve, blocks = sampler.curve(), sum(map(len, prompts))
    assert curve.blocks == blocks
    for capacity in (50, 150, 400, 1000, 3000):
        # buckets are 9 % wide, so a capacity inside of one is off by a part of what falls into it
        assert curve.hit_rate(capacity) == pytest.approx(lru_hits(prompts, capacity) / blocks, abs=0.04)
    assert curve.hit_rate(10**9) == pytest.approx(lru_hits(prompts, 10**9) / blocks, abs=1e-9)


def test_sampled_curve_is_near_the_whole_one_in_bounded_memory() -> None:
    prompts = chats(2, 3000, 120)
    whole, sampled = ReuseSampler(max_samples=10**7, enough=10**9), ReuseSampler(max_samples=512)
    for prompt in prompts:
        whole.observe(prompt)
        sampled.observe(prompt)
    exact, estimate = whole.curve(), sampled.curve()
    assert exact.sampled_share == 1.0
    assert estimate.sampled_share < 0.1
    followed = len(sampled._largest) + len(sampled._fresh)
    assert len(sampled._last) == len(sampled._times) == followed <= 512
    assert estimate.distinct == pytest.approx(exact.distinct, rel=0.15)
    for capacity in (500, 1000, 2000, 4000, 8000):
        assert estimate.hit_rate(capacity) == pytest.approx(exact.hit_rate(capacity), abs=0.06)


def test_the_longer_it_listens_the_less_it_follows_and_the_curve_stays() -> None:
    prompts = chats(1, 600, 40)
    whole, thrifty = ReuseSampler(max_samples=10**7, enough=10**9), ReuseSampler(enough=2048)
    for prompt in prompts:
        whole.observe(prompt)
        thrifty.observe(prompt)
    assert thrifty.curve().sampled_share < 0.5
    for capacity in (150, 1000, 3000):
        assert thrifty.curve().hit_rate(capacity) == pytest.approx(whole.curve().hit_rate(capacity), abs=0.06)


def test_a_prompt_of_a_million_blocks_never_takes_more_than_its_memory() -> None:
    """The first prompt of a fresh gateway may be as large as a body may be."""
    sampler, random = ReuseSampler(max_samples=64), Random(9)
    keys = [BlockKey(random.getrandbits(64)) for _ in range(50_000)]
    sampler.observe(keys)
    assert len(sampler._last) <= 64
    assert sampler._times == sorted(sampler._last.values())
    sampler.observe(keys)
    assert sampler.curve().blocks == 100_000
    assert sampler.curve().distinct == pytest.approx(50_000, rel=0.3)
    assert sampler.curve().ceiling == pytest.approx(0.5, abs=0.1)
