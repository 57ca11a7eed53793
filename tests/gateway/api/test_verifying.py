"""The index is verified beside requests, whatever comes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from gateway.api.verifying import Verifier
from gateway.errors import GatewayError, Unavailable
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId
from tests.gateway.api.rig import http, running
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

A = WorkerId("a")
CHATS = 300


def chat(number: int) -> list[BlockKey]:
    return [BlockKey(1000 + 20 * number + place) for place in range(20)]


def filled(index: PrefixIndex, worker: WorkerId = A) -> PrefixIndex:
    index.add_worker(worker)
    for number in range(CHATS):
        index.store(worker, chat(number))
    return index


@asynccontextmanager
async def admin_of(port: int) -> AsyncIterator[tuple[Whole, str]]:
    async with (
        whole(f"http://127.0.0.1:{port}", ready=0) as gateway,
        running(gateway.app.admin) as admin,
    ):
        filled(gateway.app.index)
        yield gateway, f"http://127.0.0.1:{admin}/admin/index"


async def test_others_have_a_turn_after_each_step_and_may_write_then() -> None:
    """By a clock that says a second has gone whenever it is asked. Each block is looked at three times, 64 in
    one step."""
    index, clock, numbers = filled(PrefixIndex()), count(), count(CHATS)
    verifier = Verifier(index, lambda: False, busy=lambda: float(next(clock)))
    turns = 0

    async def event() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            index.store(A, chat(next(numbers)))
            index.remove(A, chat(turns % CHATS)[::-1])

    writing = asyncio.create_task(event())
    await verifier.sound()
    writing.cancel()
    assert turns > 3 * CHATS * 20 / 64


async def test_what_is_wrong_is_said_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    index = filled(PrefixIndex())
    index._tree.size += 1
    with pytest.raises(
        GatewayError, match=r"the index contradicts itself \(.*\): restart this replica"
    ) as found:
        await Verifier(index, lambda: False).sound()
    assert found.value.status == 500
    assert [record.message for record in caplog.records] == ["the index contradicts itself"]


async def test_it_holds_up_no_shutdown() -> None:
    clock = count()
    verifier = Verifier(filled(PrefixIndex()), lambda: True, busy=lambda: float(next(clock)))
    with pytest.raises(Unavailable, match="shutting down"):
        await verifier.sound()


@pytest.mark.parametrize("path", ["verify", "shared/verify"])
async def test_the_whole_index_is_verified(free_port: Callable[[], int], path: str) -> None:
    async with admin_of(free_port()) as (gateway, admin), http() as client:
        sound = await client.post(f"{admin}/{path}")
        assert sound.status_code == 200
        assert sound.json() in ({"status": "sound"}, {"clean": True, "workers": []})
        gateway.app.index._tree.size += 1
        unsound = await client.post(f"{admin}/{path}")
        assert unsound.status_code == 500
        assert "the index contradicts itself" in unsound.json()["error"]["message"]


async def test_one_run_at_a_time(free_port: Callable[[], int]) -> None:
    """Of both kinds together. Whoever comes second is told when to come again, and is served then."""
    async with admin_of(free_port()) as (_, admin), http() as client:
        paths = ("verify", "shared/verify", "verify")
        answers = await asyncio.gather(*(client.post(f"{admin}/{path}") for path in paths))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "5"
        assert "one run at a time" in refused.json()["error"]["message"]
        assert (await client.post(f"{admin}/verify")).status_code == 200


async def test_it_ends_with_its_client(free_port: Callable[[], int]) -> None:
    async with admin_of(free_port()) as (gateway, admin), http() as client:
        watchers = gateway.app.index._tree.watchers
        async with asyncio.timeout(20):
            asking = asyncio.create_task(client.post(f"{admin}/verify"))
            while not watchers:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            asking.cancel()
            while watchers:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await client.post(f"{admin}/verify")).status_code == 200
