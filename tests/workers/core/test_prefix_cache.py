"""The physics of the prefix cache: what may be shared, how much of it, and what is told about it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope, EngineHash


def prompt(length: int, first: int = 100) -> tuple[int, ...]:
    return tuple(range(first, first + length))


# the values that real engines report, see the recordings in tests/data/vllm


def test_of_a_prompt_fully_held_the_last_token_is_computed(make: Any) -> None:
    h = make()
    assert h.run("cold", prompt(100)) == 0
    assert h.run("again", prompt(100)) == 96
    assert h.run("whole blocks", prompt(96)) == 80
    assert h.run("one more", prompt(97)) == 96
    assert h.run("less than a block", prompt(15, 9_000)) == 0
    assert h.run("the same", prompt(15, 9_000)) == 0


def test_blocks_filled_by_decoding_are_cached(make: Any) -> None:
    h = make()
    answer = list(range(500, 530))
    h.runner.answers["a"] = answer
    h.run("a", prompt(20), max_tokens=30)
    # 20 + 30 tokens, of which the last was never computed: 49, three full blocks
    assert h.run("b", (*prompt(20), *answer, 1, 2, 3, 4, 5)) == 48
    stored = [event for event in h.events if isinstance(event, BlockStored)]
    assert [len(event.token_ids) for event in stored[:3]] == [16, 16, 16]


@pytest.mark.parametrize(
    "other", [CacheScope("m", salt="s"), CacheScope("m", adapter="a"), CacheScope("another")], ids=str
)
def test_another_salt_adapter_or_model_shares_nothing(make: Any, other: CacheScope) -> None:
    h = make()
    h.run("a", prompt(100))
    assert h.run("b", prompt(100), scope=other) == 0
    assert h.run("c", prompt(100), scope=other) == 96
    assert h.run("d", prompt(100)) == 96


@pytest.mark.parametrize("changed", [0, 15, 16, 47, 48, 95, 99])
def test_a_changed_token_voids_exactly_the_blocks_from_there_on(make: Any, changed: int) -> None:
    h = make()
    h.run("a", prompt(100))
    edited = list(prompt(100))
    edited[changed] = 9_999
    assert h.run("b", edited) == changed // 16 * 16


def test_the_same_tokens_elsewhere_are_not_the_same(make: Any) -> None:
    h = make()
    h.run("a", prompt(64))
    assert h.run("b", (*prompt(16, 5_000), *prompt(64))) == 0


def test_siblings_of_one_step_share(make: Any) -> None:
    h = make()
    h.add("a", prompt(40))
    h.add("b", prompt(40))
    h.finish()
    assert h.outputs["b"][0].num_cached_tokens == 32
    first, second = h.runner.steps[0]
    assert list(second.block_table)[:2] == list(first.block_table)[:2]
    assert (second.start, tuple(second.tokens)) == (32, prompt(40)[32:])


def test_a_request_that_skips_the_cache_computes_all_and_is_no_query(make: Any) -> None:
    h = make()
    h.run("a", prompt(100))
    assert h.run("b", prompt(100), skip_cache_read=True) == 0
    assert h.engine.stats().prefix_cache_queries == 100
    assert h.run("c", prompt(100)) == 96
    assert (h.engine.stats().prefix_cache_queries, h.engine.stats().prefix_cache_hits) == (200, 96)


def test_without_prefix_caching_nothing_is_kept_or_told(make: Any) -> None:
    h = make(enable_prefix_caching=False)
    h.run("a", prompt(100), max_tokens=40)
    assert h.run("b", prompt(100)) == 0
    assert h.batches == []
    assert h.engine.stats().prefix_cache_queries == 0


def test_usage_ignores_cached_blocks_that_nobody_uses(make: Any) -> None:
    h = make()
    h.add("a", prompt(100), max_tokens=2)
    h.step()
    assert h.engine.stats().kv_cache_usage == 7 / 64
    h.finish()
    assert h.engine.stats().kv_cache_usage == 0
    assert h.run("b", prompt(100)) == 96


def test_counters(make: Any) -> None:
    h = make()
    h.run("a", prompt(100), max_tokens=3)
    h.run("b", prompt(50), max_tokens=2)
    stats = h.engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (150, 5)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (150, 48)
    assert (stats.running, stats.waiting, stats.preemptions) == (0, 0, 0)


def test_a_reset_is_refused_while_busy_and_told_with_the_next_step(make: Any) -> None:
    h = make()
    h.add("a", prompt(40), max_tokens=5)
    h.step()
    assert h.engine.reset_prefix_cache() is False
    h.finish()
    h.batches.clear()
    assert h.engine.reset_prefix_cache() is True
    assert h.batches == []
    assert h.run("b", prompt(40)) == 0
    assert h.batches[0].events[0] == AllBlocksCleared()
    assert isinstance(h.batches[0].events[1], BlockStored)
    assert (h.batches[0].ts, h.batches[0].dp_rank) == (1.5, 0)


def test_removals_come_before_the_store_that_needed_the_room(make: Any) -> None:
    h = make(num_blocks=8, max_model_len=128)
    h.run("a", prompt(64))
    h.batches.clear()
    h.run("b", prompt(100, 1_000))
    kinds = [type(event) for event in h.events]
    # 7 blocks, 4 are free of everything
    assert kinds == [BlockRemoved, BlockRemoved, BlockRemoved, BlockStored]
    # the tail went, the head is left
    assert h.run("c", prompt(64)) == 16


def test_a_hit_and_a_short_prompt_are_not_told(make: Any) -> None:
    h = make()
    h.run("a", prompt(40))
    h.batches.clear()
    h.run("b", prompt(40))
    h.run("c", prompt(15, 3_000))
    assert h.batches == []


def test_chunks_are_told_one_store_each_with_their_parent(make: Any) -> None:
    h = make(max_num_batched_tokens=40)
    h.run("a", prompt(100))
    stores = [event for event in h.events if isinstance(event, BlockStored)]
    # 40, 80 and 100 tokens are computed after the three steps: 2, 5 and 6 full blocks
    assert [len(store.block_hashes) for store in stores] == [2, 3, 1]
    assert stores[0].parent_block_hash is None
    assert stores[1].parent_block_hash == stores[0].block_hashes[-1]
    assert stores[2].parent_block_hash == stores[1].block_hashes[-1]
    assert stores[2].token_ids == prompt(100)[80:96]


def test_hashes_in_events_are_not_gateway_keys(make: Any) -> None:
    h = make()
    h.run("a", prompt(100))
    keys = block_keys(root_key(CacheScope("m")), pack_tokens(prompt(100)))
    (store,) = h.events
    assert len(set(store.block_hashes)) == 6
    assert not set(store.block_hashes) & set(keys)
    assert all(0 <= h < 2**64 for h in store.block_hashes)


class Predictor:
    """What an outsider can know: copies counted by our own keys, made from the token ids of events."""

    def __init__(self) -> None:
        self._copies: Counter[BlockKey] = Counter()
        self._key_of: dict[EngineHash, BlockKey] = {}

    def take(self, event: KVEvent) -> None:
        match event:
            case BlockStored():
                salt = (event.extra_keys or ((),))[0]
                parent = (
                    root_key(CacheScope("m", salt=str(salt[0]) if salt else ""))
                    if event.parent_block_hash is None
                    else self._key_of[event.parent_block_hash]
                )
                keys = block_keys(parent, pack_tokens(event.token_ids))
                self._copies.update(keys)
                self._key_of.update(zip(event.block_hashes, keys, strict=True))
            case BlockRemoved():
                self._copies.subtract(self._key_of[h] for h in event.block_hashes)
            case AllBlocksCleared():
                self._copies.clear()

    def cached_tokens(self, tokens: tuple[int, ...], salt: str) -> int:
        keys = block_keys(root_key(CacheScope("m", salt=salt)), pack_tokens(tokens))
        held = 0
        for key in keys[: (len(tokens) - 1) // 16]:
            if self._copies[key] <= 0:
                break
            held += 16
        return held


def test_events_alone_predict_every_cached_token(make_sim: Any) -> None:
    """1,000 requests, one after another, over a cache that holds a fraction of them."""
    rng = random.Random(20)
    h = make_sim(num_blocks=80, max_model_len=512, max_num_batched_tokens=96)
    roots = [prompt(16 * rng.randrange(1, 12), 1_000 * i) for i in range(8)]
    predictor = Predictor()
    hits = misses = removals = 0
    for number in range(1_000):
        root = rng.choice(roots)
        tokens = list(root[: rng.choice((len(root), rng.randrange(1, len(root) + 1)))])
        tokens += [rng.randrange(3, 6) for _ in range(rng.choice((0, 1, 15, 16, 17, 40)))]
        if rng.random() < 0.2:
            tokens[rng.randrange(len(tokens))] = 7
        salt = rng.choice(("", "", "", "tenant"))
        expected = predictor.cached_tokens(tuple(tokens), salt)
        cached = h.run(str(number), tokens, rng.choice((1, 1, 20)), scope=CacheScope("m", salt=salt))
        assert cached == expected, number
        for event in h.events:
            predictor.take(event)
            removals += isinstance(event, BlockRemoved)
        h.batches.clear()
        if number % 250 == 200:
            assert h.engine.reset_prefix_cache()
            h.run("tells of it", prompt(5))
            for event in h.events:
                predictor.take(event)
            h.batches.clear()
        hits += cached > 0
        misses += cached == 0
        if rng.random() < 0.3:
            answered = tuple(t for t in h.tokens(str(number)) if t is not None)
            roots[rng.randrange(len(roots))] = (*tokens, *answered)[:300]
    assert hits > 300
    assert misses > 100
    assert removals > 1_000
