"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from workers.api.merge import merge

pytestmark = pytest.mark.anyio


async def numbers(
    *values: int, closed: list[int] | None = None, fails: bool = False
) -> AsyncGenerator[int, None]:
    try:
        for value in values:
            await asyncio.sleep(0)
            yield value
        if fails:
            raise LookupError("the stream broke")
    finally:
        if closed is not None:
            closed.append(values[0])


async def test_every_item_comes_once_and_each_stream_keeps_its_order() -> None:
    items = [item async for item in merge([numbers(1, 2, 3), numbers(10, 20), numbers(100)])]
    assert sorted(items) == [1, 2, 3, 10, 20, 100]
    assert [item for item in items if item < 10] == [1, 2, 3]
    assert [item for item in items if 10 <= item < 100] == [10, 20]


async def test_the_first_error_ends_all() -> None:
    closed: list[int] = []
    endless = numbers(*range(10, 100_000), closed=closed)
    with pytest.raises(LookupError):
        async for _ in merge([numbers(1, closed=closed, fails=True), endless]):
            pass
    assert sorted(closed) == [1, 10]


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_all(count: int) -> None:
    closed: list[int] = []
    streams = [numbers(i, 2, 3, 4, closed=closed) for i in range(count)]
    async with aclosing(merge(streams)) as merged:
        async for _ in merged:
            break
    assert sorted(closed) == list(range(count))
