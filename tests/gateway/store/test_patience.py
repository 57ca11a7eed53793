"""Redis is not away because this process was slow; and it is away when it does not answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gateway.errors import StoreError
from gateway.store.connection import Store
from gateway.store.patience import STRIDES, Patience
from gateway.store.url import parse_store_url
from tests.servers import standalone

LIMIT = 0.2
HELD_UP = 5 * LIMIT


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


@pytest.mark.anyio
async def test_an_answer_that_waits_is_read_however_late_the_loop_is(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        await store.command("SET", "k", "v")
        asking = asyncio.ensure_future(store.command("GET", "k", timeout=LIMIT))
        await asyncio.sleep(0)  # it has been sent
        time.sleep(HELD_UP)  # noqa: ASYNC251 - what is tested
        assert await asking == b"v"
        assert store.status.failures == 0
        await store.close()


@pytest.mark.anyio
async def test_one_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store, other = Store(parse_store_url(server.url)), Store(parse_store_url(server.url))
        for each in (store, other):
            await each.command("SET", "k", "v")
        server.pause()
        try:
            with pytest.raises(StoreError, match=r"^no answer in 0\.2 s") as failed:
                await store.command("GET", "k", timeout=LIMIT)
            assert (failed.value.kind, store.status.up) == ("timeout", False)
            asking = asyncio.ensure_future(other.command("GET", "k", timeout=LIMIT))
            await asyncio.sleep(0)
            time.sleep(HELD_UP)  # noqa: ASYNC251 - what is tested
            with pytest.raises(StoreError, match=r"and this process was held up for .* s beside$"):
                await asking
        finally:
            server.resume()
        await store.close()
        await other.close()


@pytest.mark.anyio
async def test_a_loop_that_is_always_late_comes_to_an_end() -> None:
    loop = asyncio.get_running_loop()
    turns = 0

    def busy() -> None:
        nonlocal turns, handle
        turns += 1
        time.sleep(0.02)
        handle = loop.call_soon(busy)

    handle = loop.call_soon(busy)
    patience = Patience(0.005 * STRIDES)
    with pytest.raises(TimeoutError):
        async with patience:
            await asyncio.Event().wait()
    handle.cancel()
    # a stride takes a turn or two: the five, five more at most, and what it takes to be told
    assert STRIDES <= turns <= 2 * 2 * STRIDES + 5
    assert patience.held_up > 0


@pytest.mark.anyio
async def test_a_cancelled_wait_is_cancelled() -> None:
    async def wait() -> None:
        async with Patience(60):
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
