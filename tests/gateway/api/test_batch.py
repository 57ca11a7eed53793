"""Records that are told together: all of them, in order, and soon."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.batch import MOST, MOST_BLOCKS, Batch
from gateway.api.record import RequestRecord
from gateway.routing.route import Outcome
from gateway.types import BlockKey

pytestmark = pytest.mark.anyio


def record(name: int, blocks: int = 0) -> RequestRecord:
    return RequestRecord(
        request_id=str(name),
        endpoint="/v1/chat/completions",
        asked_model="m",
        status=200,
        outcome=Outcome.OK,
        routing_s=0.0,
        total_s=0.0,
        keys=[[BlockKey(n) for n in range(blocks)]],
    )


class Told:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.some = asyncio.Event()

    def record(self, record: RequestRecord) -> None:
        self.names.append(record.request_id)
        self.some.set()


async def test_so_many_at_a_time_each_recorder_all_of_them_in_order() -> None:
    one, other = Told(), Told()
    batch = Batch(one, other)
    for n in range(MOST - 1):
        batch.record(record(n))
    assert one.names == other.names == []
    batch.record(record(MOST - 1))
    assert one.names == other.names == [str(n) for n in range(MOST)]
    batch.record(record(MOST))
    assert len(one.names) == MOST
    batch.flush()
    assert one.names == other.names == [str(n) for n in range(MOST + 1)]
    batch.flush()
    assert len(one.names) == MOST + 1


async def test_a_long_prompt_does_not_wait_for_others() -> None:
    told = Told()
    batch = Batch(told)
    batch.record(record(0, MOST_BLOCKS // 2))
    assert told.names == []
    batch.record(record(1, MOST_BLOCKS // 2))
    assert told.names == ["0", "1"]
    batch.record(record(2, MOST_BLOCKS - 1))
    assert told.names == ["0", "1"]
    batch.record(record(3, MOST_BLOCKS))
    assert told.names == ["0", "1", "2", "3"]


async def test_a_few_are_told_without_anybody_asking() -> None:
    told = Told()
    batch = Batch(told)
    for n in range(3):  # the second and third time, a timer has rung before
        told.some.clear()
        batch.record(record(n))
        await asyncio.wait_for(told.some.wait(), 10)
        assert told.names == [str(m) for m in range(n + 1)]
