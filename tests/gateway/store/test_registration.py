"""A registration stands while it is renewed, and says what a worker line says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.store.connection import Store
from gateway.store.registration import Registration, Registrations
from gateway.store.url import parse_store_url
from gateway.types import WorkerId
from tests.servers import standalone

ONE = Registration(id=WorkerId("http://a:1"), url="http://a:1", events="tcp://a:2", model="m", block_size=16)
TWO = Registration(
    id=WorkerId("http://b:1#dp1"), url="http://b:1", dp_rank=1, state="draining", followed=True
)


@pytest.mark.anyio
async def test_in_changed_and_out(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        known = Registrations(store)
        assert await known.all() == {}
        await known.put(ONE)
        await known.put(TWO)
        assert await known.all() == {ONE.id: ONE, TWO.id: TWO}
        await known.withdraw(ONE.id)
        assert await known.all() == {TWO.id: TWO}
        await store.close()


@pytest.mark.anyio
async def test_a_dead_agents_worker_leaves(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        now = [1_000_000.0]
        known = Registrations(store, ttl=0.05, wall=lambda: now[0])
        await known.put(ONE)
        async with asyncio.timeout(10):
            while await known.all():  # noqa: ASYNC110 (a key that expires tells nobody)
                await asyncio.sleep(0.01)
        assert await store.command("ZCARD", store.keys.workers()) == 1, "its id is kept a minute"
        now[0] += 61
        assert await known.all() == {}
        assert await store.command("ZCARD", store.keys.workers()) == 0
        await store.close()
