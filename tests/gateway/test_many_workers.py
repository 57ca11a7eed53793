"""What a fleet of more workers than a client library's defaults allow for must not notice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.app import build
from gateway.settings import Settings
from tests.faults import FaultyEngine, hangs

pytestmark = pytest.mark.anyio


async def test_engines_that_hang_keep_nobody_else_from_being_asked() -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FaultyEngine(hangs())) for _ in range(130)]
        # a look at one of them does not end in this test's time
        settings = Settings(workers=tuple(engine.url for engine in engines), health_timeout=600)
        await stack.enter_async_context(build(settings))
        async with asyncio.timeout(60):
            while not all(engine.seen for engine in engines):  # noqa: ASYNC110 (no event for all of them)
                await asyncio.sleep(0.01)
