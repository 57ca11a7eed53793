"""The block pool by hand: a pool of six blocks, keys that are just numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from gateway.types import BlockKey, CacheScope
from workers.blocks import BlockPool
from workers.cache_events import CacheEventLog

SCOPE = CacheScope("m")


def keys(*numbers: int) -> list[BlockKey]:
    return [BlockKey(number) for number in numbers]


def register(
    pool: BlockPool, blocks: Sequence[int], names: list[BlockKey], parent: int | None = None
) -> None:
    tokens = tuple(range(2 * len(names)))
    pool.register(SCOPE, blocks, names, None if parent is None else BlockKey(parent), tokens)


@pytest.fixture
def log() -> CacheEventLog:
    return CacheEventLog(2, hash_mask=0)


@pytest.fixture
def pool(log: CacheEventLog) -> BlockPool:
    return BlockPool(6, 2, log)


def removed(events: Sequence[KVEvent]) -> list[int]:
    return [
        int(h) for e in events if isinstance(e, BlockRemoved) for h in e.block_hashes if isinstance(h, int)
    ]


def test_blocks_go_out_in_order_and_count_as_used(pool: BlockPool) -> None:
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert (pool.num_used, pool.num_free) == (4, 2)


def test_more_than_is_free_is_refused_and_changes_nothing(pool: BlockPool) -> None:
    table = pool.allocate(4)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    pool.check_integrity([table])


def test_a_tail_is_evicted_before_its_head(pool: BlockPool, log: CacheEventLog) -> None:
    table = pool.allocate(3)
    register(pool, table, keys(10, 11, 12))
    pool.release(table)
    log.take()
    # 3, 4 and 5 were never used, then 2, 1, 0 from the tail
    assert pool.allocate(6) == [3, 4, 5, 2, 1, 0]
    assert removed(log.take()) == [12, 11, 10]


def test_the_longest_unused_goes_first_and_a_hit_makes_young(pool: BlockPool, log: CacheEventLog) -> None:
    a = pool.allocate(2)
    b = pool.allocate(2)
    c = pool.allocate(2)
    for table, names in ((a, keys(10, 11)), (b, keys(20, 21)), (c, keys(30, 31))):
        register(pool, table, names)
        pool.release(table)
    hit = pool.lookup(keys(10, 11), 2)
    pool.share(hit)
    pool.release(hit)
    log.take()
    pool.allocate(5)
    assert removed(log.take()) == [21, 20, 31, 30, 11]


def test_a_block_without_a_key_goes_before_every_cached_one(pool: BlockPool, log: CacheEventLog) -> None:
    a = pool.allocate(3)
    register(pool, a[:2], keys(10, 11))
    pool.release(a)
    b = pool.allocate(3)
    assert b == [2, 3, 4]
    register(pool, b[:2], keys(20, 21))
    pool.release(b)
    log.take()
    assert pool.allocate(3) == [4, 5, 1]
    assert removed(log.take()) == [11]


def test_lookup_ends_at_the_first_hole_and_at_its_limit(pool: BlockPool) -> None:
    table = pool.allocate(4)
    register(pool, [table[0], table[1], table[3]], keys(10, 11, 13))
    assert pool.lookup(keys(10, 11, 12, 13), 9) == [0, 1]
    assert pool.lookup(keys(10, 11, 12, 13), 1) == [0]
    assert pool.lookup(keys(99, 10), 9) == []


def test_a_shared_block_is_free_when_its_last_user_goes(pool: BlockPool) -> None:
    table = pool.allocate(2)
    register(pool, table, keys(10, 11))
    pool.share(table)
    pool.release(table)
    assert pool.num_free == 4
    pool.check_integrity([table])
    pool.release(table)
    assert pool.num_free == 6
    assert pool.lookup(keys(10, 11), 2) == table


def test_copies_are_found_and_removed_one_by_one(pool: BlockPool, log: CacheEventLog) -> None:
    first = pool.allocate(1)
    second = pool.allocate(1)
    register(pool, first, keys(10))
    register(pool, second, keys(10))
    stored = [event for event in log.take() if isinstance(event, BlockStored)]
    assert [event.block_hashes for event in stored] == [(10,), (10,)]
    assert pool.lookup(keys(10), 1) == first
    assert pool.num_cached == 2
    pool.release(first)
    pool.release(second)
    assert pool.allocate(5) == [2, 3, 4, 5, 0]
    assert removed(log.take()) == [10]
    assert pool.lookup(keys(10), 1) == second
    pool.allocate(1)
    assert removed(log.take()) == [10]
    assert pool.lookup(keys(10), 1) == []


def test_fits_counts_cached_blocks_that_leave_the_queue(pool: BlockPool) -> None:
    table = pool.allocate(2)
    register(pool, table, keys(10, 11))
    assert pool.fits(4, table)
    pool.release(table)
    assert pool.fits(4, table)
    assert not pool.fits(5, table)
    assert pool.fits(6)


def test_reset_forgets_all_and_refuses_while_in_use(pool: BlockPool, log: CacheEventLog) -> None:
    table = pool.allocate(2)
    register(pool, table, keys(10, 11))
    assert not pool.reset()
    assert pool.lookup(keys(10), 1) == [0]
    pool.release(table)
    log.take()
    assert pool.reset()
    assert log.take() == (AllBlocksCleared(),)
    assert pool.lookup(keys(10), 1) == []
    pool.check_integrity([])


def test_stored_events_name_parent_tokens_and_what_else_is_hashed() -> None:
    log = CacheEventLog(2, hash_mask=0xFF)
    log.stored(CacheScope("m", "ad", "s"), keys(1, 2), None, (5, 6, 7, 8))
    log.stored(CacheScope("m", "other", "s"), keys(3), BlockKey(2), (9, 9))
    log.stored(CacheScope("m"), keys(4), None, (1, 1))
    first, second, third = log.take()
    assert first == BlockStored(
        block_hashes=(0xFE, 0xFD),
        parent_block_hash=None,
        token_ids=(5, 6, 7, 8),
        block_size=2,
        lora_id=1,
        lora_name="ad",
        extra_keys=(("ad", "s"), ("ad",)),
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert isinstance(second, BlockStored)
    assert (second.parent_block_hash, second.lora_id, second.extra_keys) == (0xFD, 2, (("other",),))
    assert isinstance(third, BlockStored)
    assert (third.lora_id, third.lora_name, third.extra_keys) == (None, None, (None,))
    assert log.take() == ()


def test_integrity_notices_a_lost_reference(pool: BlockPool) -> None:
    table = pool.allocate(2)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([table, table[:1]])


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        BlockPool(0, 16)
