"""Blocks that go and come back while their change waits for Redis, and a mirror that is asked meanwhile."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.index.replication.shelf import load_scripts
from gateway.index.replication.verify import audit
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.replication_rig import KEYS, Engine, Replica, W, redis_holdings
from tests.servers import Server, server_binaries, standalone

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=server_binaries(), ids=os.path.basename)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis"), binary=request.param) as running:
        yield running


class World:
    """An engine that holds blocks 1 and 4, one behind the other; `writer` and `mirror` know both."""

    def __init__(self, store: Store) -> None:
        epochs = (str(number).encode() for number in itertools.count(1))
        self.engine = Engine()
        self.writer, self.mirror = (
            Replica(name, store, load_scripts(), self.engine, epochs) for name in ("writer", "mirror")
        )

    async def begin(self) -> None:
        self.engine.store(4)
        assert await self.writer.take_over()
        await self.written()

    async def written(self) -> None:
        """All that the writer knows is in Redis, and in the mirror."""
        assert self.writer.writer is not None
        await self.writer.writer.flush()
        await self.mirror.mirror.settle()

    async def evicted_and_computed_anew(self) -> None:
        """In two batches of the engine, which the writer sends as one."""
        assert self.writer.writer is not None
        self.engine.remove(4)
        self.engine.store(4)
        await self.writer.catch_up()


@pytest.fixture
async def world(server: Server) -> AsyncIterator[World]:
    with server.client() as admin:
        admin.flushall()
    store = Store(parse_store_url(server.url), timeout=20)
    world = World(store)
    await world.begin()
    yield world
    await store.close()


async def test_what_a_mirror_refuted_meanwhile_is_held_again(world: World) -> None:
    """Block 4 was promised, delivered short, and computed for that very answer."""
    await world.evicted_and_computed_anew()
    world.mirror.index.refute(W, (KEYS[1], KEYS[4]), 1)
    assert world.mirror.copies() == {KEYS[1]: 1}
    await world.written()
    assert world.mirror.copies() == world.engine.holdings() == {KEYS[1]: 1, KEYS[4]: 1}
    found = await audit(world.mirror.shelf, lambda: world.mirror.mirror.head, world.mirror.index)
    assert (found.state, found.blocks, found.missing) == ("clean", 2, 0)


async def test_who_waits_for_the_answer_hears_that_it_went(world: World) -> None:
    """So the short delivery refutes nothing."""
    watch = world.mirror.index.watch(W, KEYS[4])
    assert watch is not None
    await world.evicted_and_computed_anew()
    await world.written()
    assert watch.gone


async def test_what_came_and_went_meanwhile_is_nowhere(world: World) -> None:
    world.engine.store(5)
    world.engine.remove(5)
    await world.writer.catch_up()
    await world.written()
    assert world.mirror.copies() == await redis_holdings(world.mirror.shelf) == {KEYS[1]: 1, KEYS[4]: 1}


async def test_a_heir_that_refuted_it_before_it_took_over_holds_it(world: World) -> None:
    await world.evicted_and_computed_anew()
    world.mirror.index.refute(W, (KEYS[1], KEYS[4]), 1)
    writer = world.writer.writer
    assert writer is not None
    await writer.settle()
    assert await writer.release("mirror")
    world.writer.leave()
    assert await world.mirror.take_over()
    assert world.mirror.copies() == world.engine.holdings() == {KEYS[1]: 1, KEYS[4]: 1}


async def test_a_writer_that_writes_its_books_anew_is_on_its_way(world: World) -> None:
    """What Redis has of them meanwhile is not compared with all that is here."""
    writer, apply = world.writer.writer, world.writer.shelf.apply
    assert writer is not None
    pending: list[int] = []

    async def watched(*args: object, **named: object) -> object:
        pending.append(writer.pending)
        return await apply(*args, **named)  # type: ignore[arg-type]

    world.writer.shelf.apply = watched  # type: ignore[assignment, method-assign]
    writer._give_up_queue("lost")
    await writer.flush()
    assert pending == [1]
    assert writer.pending == 0
