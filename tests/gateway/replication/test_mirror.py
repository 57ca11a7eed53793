"""A mirror against the histories that Redis can show it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator

import pytest

from gateway.errors import StoreError
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.delta import Delta
from gateway.index.replication.loads import Loads as Turns
from gateway.index.replication.mirror import Mirror, MirrorState, set_copies
from gateway.index.replication.shelf import Grant, Outcome, Shelf, load_scripts
from gateway.index.replication.wire import Held
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, WorkerId
from tests.servers import Server, server_binaries, standalone

pytestmark = pytest.mark.anyio

A, B, C, D = (BlockKey(number) for number in (2**64 - 1, 2, 3, 4))


@pytest.fixture(scope="module", params=server_binaries(), ids=os.path.basename)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis"), binary=request.param) as running:
        yield running


class Loads:
    """Keeps why it loaded."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def loaded(self, reason: str, blocks: int, seconds: float) -> None:
        self.reasons.append(reason)


class World:
    """One worker's shelf, a writer's right to it, and a mirror."""

    def __init__(self, server: Server, name: str) -> None:
        self.worker = WorkerId(name)
        self.store = Store(parse_store_url(server.url), timeout=10)
        self.shelf = Shelf(self.store, self.worker, load_scripts(), stream_length=1)
        self.index = PrefixIndex()
        self.index.add_worker(self.worker)
        self.loads = Loads()
        self.mirror = Mirror(self.shelf, self.index, self.loads)
        self.number = 0
        self.grant: Grant | None = None

    async def begin(self, owner: str = "a") -> None:
        await self.store.command("DEL", self.store.keys.lease(self.worker))
        self.grant = await self.shelf.acquire(owner, 60)

    async def write(
        self, *keys: BlockKey, epoch: str, new: bool = False, copies: int = 1, complete: bool = True
    ) -> None:
        assert self.grant is not None
        self.number += 1
        delta = Delta(b"", b"", copies=dict.fromkeys(keys, copies), parents=dict.fromkeys(keys))
        outcome = await self.shelf.apply(
            self.grant.token, epoch.encode(), self.number, delta,
            new_epoch=epoch.encode() if new else b"", complete=complete,
        )  # fmt: skip
        assert outcome is Outcome.OK

    def copies(self) -> dict[BlockKey, int]:
        return {key: self.index.copies(self.worker, key) for key in self.index.held(self.worker)}


async def test_loads_once_then_follows(server: Server) -> None:
    world = World(server, "follows")
    await world.mirror.step(0.001)
    assert world.mirror.state is MirrorState.EMPTY
    await world.begin()
    await world.write(A, B, epoch="e1", new=True)
    await world.mirror.settle()
    assert world.copies() == {A: 1, B: 1}
    await world.write(A, C, epoch="e1")
    await world.write(B, epoch="e1", copies=-1)
    await world.mirror.settle()
    assert world.copies() == {A: 2, C: 1}
    assert world.loads.reasons == ["start"]
    await world.store.close()


async def test_a_new_epoch_voids_all_at_once(server: Server) -> None:
    world = World(server, "epochs")
    await world.begin()
    await world.write(A, B, epoch="e1", new=True)
    await world.mirror.settle()
    await world.write(C, epoch="e2", new=True)
    await world.mirror.step(0.001)
    assert world.copies() == {C: 1}
    assert world.loads.reasons == ["start"], "the stream says it all"
    await world.store.close()


async def test_one_that_reads_or_loads_a_part_of_a_refill_is_not_current(server: Server) -> None:
    world = World(server, "parts")
    await world.begin()
    await world.write(A, epoch="e1", new=True)
    await world.mirror.settle()
    assert world.mirror.state is MirrorState.FOLLOWING
    other = PrefixIndex()
    other.add_worker(world.worker)
    late = Mirror(world.shelf, other)
    await world.write(B, epoch="e2", new=True, complete=False)
    await world.write(C, epoch="e2", complete=False)
    for mirror in (world.mirror, late):
        # what is there is read, and then nothing comes
        for _ in range(3):
            await mirror.step(0.001)
            assert mirror.state is MirrorState.REFILLING
        assert mirror.head == (b"e2", 3)
    assert world.copies() == {B: 1, C: 1}
    assert (world.mirror.knows, late.knows) == (True, False)
    await world.write(D, epoch="e2")
    for mirror in (world.mirror, late):
        await mirror.step(0.001)
        assert mirror.state is MirrorState.FOLLOWING
        assert mirror.knows
    assert world.copies() == {B: 1, C: 1, D: 1}
    await world.store.close()


async def test_an_entry_that_does_not_say_whether_it_is_a_part_is_none(server: Server) -> None:
    """It is an older writer's: two releases run side by side while replicas are replaced."""
    world = World(server, "older")
    await world.begin()
    await world.write(A, epoch="e1", new=True)
    await world.mirror.settle()
    assert world.grant is not None
    fields = ("e", "e1", "n", 2, "t", world.grant.token, "r", "0", "p", b"")
    await world.store.command("XADD", world.store.keys.changes(world.worker), "*", *fields)
    await world.mirror.step(0.001)
    assert world.mirror.head == (b"e1", 2)
    assert world.mirror.state is MirrorState.FOLLOWING
    await world.store.close()


async def test_history_trimmed_behind_it_is_noticed(server: Server) -> None:
    world = World(server, "trimmed")
    await world.begin()
    await world.write(A, epoch="e1", new=True)
    await world.mirror.settle()
    await world.write(A, epoch="e1", copies=-1)
    for _ in range(300):  # a stream is trimmed in steps of about a hundred
        await world.write(B, epoch="e1")
    await world.mirror.settle()
    assert world.copies() == {B: 300}
    assert world.loads.reasons == ["start", "gap"]
    await world.store.close()


async def test_what_is_known_stands_until_all_of_it_was_read_anew(server: Server) -> None:
    """And whoever compares it with Redis meanwhile is told that it is on its way."""
    world = World(server, "stands")
    await world.begin()
    await world.write(A, B, epoch="e1", new=True)
    await world.mirror.settle()
    await world.write(C, epoch="e2", new=True)
    for _ in range(300):  # history is gone, and with it the beginning of this epoch
        await world.write(D, epoch="e2")
    pages, records = [], world.shelf.held_records

    async def looked_at() -> AsyncGenerator[bytes]:
        async for page in records():
            pages.append((world.copies(), world.mirror.head[0], world.mirror.state))
            yield page

    world.shelf.held_records = looked_at  # type: ignore[method-assign]
    await world.mirror.settle()
    assert pages == [({A: 1, B: 1}, b"", MirrorState.LOADING)]
    assert world.copies() == {C: 1, D: 300}
    assert (world.mirror.head, world.mirror.state) == ((b"e2", 302), MirrorState.FOLLOWING)
    assert world.loads.reasons == ["start", "gap"]
    await world.store.close()


async def test_a_load_that_breaks_off_begins_again(server: Server) -> None:
    world = World(server, "breaks off")
    await world.begin()
    await world.write(A, B, epoch="e1", new=True)
    records, breaks = world.shelf.held_records, [True]

    async def broken() -> AsyncGenerator[bytes]:
        async for page in records():
            yield page
            if breaks:
                breaks.clear()
                raise StoreError("the connection is gone")

    world.shelf.held_records = broken  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await world.mirror.step(0.001)
    assert (world.copies(), world.mirror.loads) == ({}, 0)
    await world.mirror.settle()
    assert (world.copies(), world.mirror.loads) == ({A: 1, B: 1}, 1)
    await world.store.close()


async def test_so_many_load_at_once_and_no_more() -> None:
    loads, inside, most = Turns(2), 0, 0
    goes_on = [asyncio.Event() for _ in range(5)]

    async def load(number: int) -> None:
        nonlocal inside, most
        async with loads:
            inside, most = inside + 1, max(most, inside + 1)
            await goes_on[number].wait()
            inside -= 1

    tasks = [asyncio.create_task(load(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert inside == 2
    tasks[3].cancel()  # one that waits
    for event in goes_on:
        event.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert (most, inside) == (2, 0)
    assert [type(one) for one in done].count(asyncio.CancelledError) == 1


async def test_writes_lost_in_a_failover_are_taken_back(server: Server) -> None:
    """The mirror saw batch 2, the new master never did; a successor writes another batch 2."""
    world = World(server, "failover")
    await world.begin("a")
    await world.write(A, epoch="e1", new=True)
    await world.write(B, epoch="e1")
    await world.mirror.settle()
    assert world.copies() == {A: 1, B: 1}
    keys = world.store.keys
    await world.store.command("DEL", keys.changes(world.worker), keys.held(world.worker))
    await world.store.command("HSET", keys.meta(world.worker), "n", 0, "epoch", "")
    world.number = 0
    await world.write(A, epoch="e1", new=True)
    await world.begin("b")
    await world.write(C, epoch="e1")
    await world.mirror.settle()
    assert world.copies() == {A: 1, C: 1}
    await world.store.close()


async def test_an_emptied_redis_takes_nothing_away_until_it_is_refilled(server: Server) -> None:
    world = World(server, "emptied")
    await world.begin()
    await world.write(A, epoch="e1", new=True)
    await world.mirror.settle()
    with server.client() as admin:
        admin.flushall()
    await world.mirror.step(0.001)
    assert world.mirror.state is MirrorState.EMPTY
    assert world.copies() == {A: 1}
    await world.begin()
    world.number = 0
    await world.write(B, epoch="e2", new=True)
    await world.mirror.step(0.001)
    assert world.copies() == {B: 1}
    await world.store.close()


def test_a_block_that_went_and_came_within_a_batch_is_told_as_gone() -> None:
    index, worker = PrefixIndex(), WorkerId("w")
    index.add_worker(worker)
    set_copies(index, worker, [Held(A, None, 1), Held(B, A, 1), Held(C, B, 1)])
    same, other = index.watch(worker, B), index.watch(worker, C)
    assert same is not None
    assert other is not None
    set_copies(index, worker, [Held(B, A, 1)])
    assert (same.gone, other.gone) == (True, False)
    set_copies(index, worker, [Held(C, B, 0), Held(C, B, 1)])
    assert other.gone


def test_set_copies_makes_it_so() -> None:
    index, worker = PrefixIndex(), WorkerId("w")
    index.add_worker(worker)
    set_copies(index, worker, [Held(A, None, 1), Held(B, A, 1), Held(C, B, 3), Held(D, A, 1)])
    assert {key: index.copies(worker, key) for key in (A, B, C, D)} == {A: 1, B: 1, C: 3, D: 1}
    assert [index.parent(worker, key) for key in (A, B, C, D)] == [None, A, B, A]
    set_copies(index, worker, [Held(A, None, 1), Held(B, A, 2), Held(C, B, 1), Held(D, A, 0)])
    assert {key: index.copies(worker, key) for key in (A, B, C, D)} == {A: 1, B: 2, C: 1, D: 0}
    index.check_integrity()
