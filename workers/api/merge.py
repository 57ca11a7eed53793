"""Several streams as one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Every item of every stream. The first error ends all; closing this closes all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for first in only:
                yield first
        return
    items: asyncio.Queue[T | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(stream, items)) for stream in streams]
    try:
        open_streams = len(tasks)
        while open_streams:
            item = await items.get()
            if item is not None:
                yield item
                continue
            open_streams -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], items: asyncio.Queue[T | None]) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                items.put_nowait(item)
    finally:
        items.put_nowait(None)
