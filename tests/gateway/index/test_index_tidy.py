from __future__ import annotations

import asyncio

import pytest

from gateway.index.prefix import PrefixIndex
from gateway.index.tidy import Tidy
from gateway.types import BlockKey, WorkerId

pytestmark = pytest.mark.anyio


async def test_many_that_leave_at_once_are_tidied_up_later() -> None:
    """Nobody waits for it then: sixty-four of their keys for each, of a thousand."""
    index = PrefixIndex()
    workers = [WorkerId(str(number)) for number in range(20)]
    for number, worker in enumerate(workers):
        index.add_worker(worker)
        index.store(worker, [BlockKey(1 + 1000 * number + place) for place in range(1000)])
    for worker in workers[10:]:
        index.remove_worker(worker)
    for worker in workers[:10]:
        index.clear(worker)
    assert index.stats().retiring_pairs == 20 * (1000 - 64)
    assert index.stats().held_pairs == 0
    while index.collect(1000):
        index.check_integrity()
    assert index.stats().blocks == 0


async def test_memory_of_a_removed_worker_returns_though_nobody_writes() -> None:
    index = PrefixIndex()
    worker = WorkerId("a")
    index.add_worker(worker)
    for start in range(1, 20_001, 100):
        index.store(worker, [BlockKey(k) for k in range(start, start + 100)])
    index.remove_worker(worker)
    assert index.stats().retiring_pairs > 10_000
    tidy = Tidy(index.collect)
    tidy.start()
    try:
        async with asyncio.timeout(30):
            while index.stats().retiring_pairs:  # noqa: ASYNC110 (nobody announces it)
                await asyncio.sleep(0.01)
    finally:
        tidy.close()
    assert index.stats().blocks == 0
    index.check_integrity()
