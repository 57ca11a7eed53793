"""Whatever happens in whatever order: mirror == Redis == what the engine really holds."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.index.replication.delta import Delta
from gateway.index.replication.shelf import Outcome, Taken, load_scripts
from gateway.index.replication.writer import Fenced, Writer
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.replication_rig import KEYS, NODES, Engine, Replica, redis_holdings
from tests.servers import Server, server_binaries, standalone

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store block"), st.integers(1, NODES - 1), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["clear", "restart", "flush", "mirror", "zombie", "resend", "emptied"])),
        st.tuples(st.just("emptied and late"), st.integers(0, 2)),
        st.tuples(st.just("hear"), st.integers(0, 99)),
        st.tuples(st.just("take over"), st.integers(0, 2), st.booleans()),
    ),
    max_size=40,
)


@pytest.fixture(scope="module", params=server_binaries(), ids=os.path.basename)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis"), binary=request.param) as running:
        yield running


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_mirror_redis_and_truth_end_equal(server: Server, steps: list[tuple[object, ...]]) -> None:
    with server.client() as admin:
        admin.flushall()
    asyncio.run(World(server).play(steps))


class World:
    """Three replicas, one of them the writer at a time, and one engine."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine = Engine()
        self._store = Store(parse_store_url(server.url), timeout=20)
        epochs = (str(number).encode() for number in itertools.count(1))
        scripts = load_scripts()
        self._replicas = [Replica(name, self._store, scripts, self._engine, epochs) for name in "abc"]
        self._writer = self._replicas[0]
        self._zombies: list[Replica] = []

    async def play(self, steps: list[tuple[object, ...]]) -> None:
        assert await self._writer.take_over()
        for name, *args in steps:
            await getattr(self, "_" + str(name).replace(" ", "_"))(*args)
        await self._end()
        await self._store.close()

    async def _end(self) -> None:
        await self._zombie()
        await self._writer.catch_up()
        await self._flush()
        truth = self._engine.holdings()
        assert await redis_holdings(self._writer.shelf) == truth
        assert self._writer.copies() == truth
        for replica in self._replicas:
            if replica is not self._writer:
                await replica.mirror.settle()
                assert replica.copies() == truth
            replica.index.check_integrity()
        links = {
            held.key: held.parent async for page in self._writer.shelf.held() for held in page if held.parent
        }
        parents = {KEYS[node]: KEYS[(node - 1) // 3] for node in KEYS if node > 3}
        assert links == {key: parent for key, parent in parents.items() if key in truth}

    # the engine

    async def _store_block(self, node: int, again: bool) -> None:
        self._engine.store(node, again=again)

    async def _remove(self, place: int) -> None:
        if ends := self._engine.ends():
            self._engine.remove(ends[place % len(ends)])

    async def _clear(self) -> None:
        self._engine.clear()

    async def _restart(self) -> None:
        """Its sockets close with it: who follows it looks at what it was when they open again."""
        self._engine.restart()
        await self._writer.catch_up()

    # what reaches the writer, and Redis

    async def _hear(self, place: int) -> None:
        """Any batch of this life: the next, an old one again, one too early."""
        if self._engine.log:
            await self._writer.hear(place % len(self._engine.log))

    async def _flush(self) -> None:
        assert self._writer.writer is not None
        await self._writer.writer.flush()

    async def _resend(self) -> None:
        """The answer to a batch got lost, and it is sent again."""
        writer = self._writer.writer
        assert writer is not None
        await writer.flush()
        epoch, number = writer.head
        if not number:
            return
        delta = Delta(b"", b"", copies={KEYS[1]: 1}, parents={KEYS[1]: None})
        outcome = await self._writer.shelf.apply(
            writer.token, epoch, number, delta, new_epoch=b"", complete=True
        )
        assert outcome is Outcome.OK, "and counts once"

    async def _emptied(self) -> None:
        """FLUSHALL; the writer notices at its next word: nobody who leaves it the first turn is quicker, even
        where the lease is missing."""
        self._flushall()
        for replica in self._replicas:
            if replica is not self._writer:
                answer = await replica.shelf.contend(replica.name, 60.0, None, returned=True)
                assert isinstance(answer, Taken)
        await self._speaks()

    async def _emptied_and_late(self, place: int) -> None:
        """FLUSHALL, and the writer is so late that another begins with nothing and hears of nothing: it gets
        back what only it knows."""
        before, after = self._writer, self._replicas[place]
        self._flushall()
        if after is not before:
            self._zombies = [z for z in self._zombies if z is not after]
            after.leave()
            assert await after.take_over(hears=False)
            assert after.copies() == {}
            await self._mirror()
            if before.sink is not None and not len(before.sink.ledger):
                await after.catch_up()  # nobody knows more than that one
                self._zombies.append(before)
                self._writer = after
                return
            after_writer = after.writer
            assert after_writer is not None
            await after_writer.flush()
            await self._speaks()
            with pytest.raises(Fenced):
                await _speak(after_writer)
            after.leave()
        await self._speaks()

    def _flushall(self) -> None:
        with self._server.client() as admin:
            admin.flushall()

    async def _speaks(self) -> None:
        writer = self._writer.writer
        assert writer is not None
        await writer.renew()
        await writer.flush()

    # replicas

    async def _mirror(self) -> None:
        """Not those who still think that they write: nobody does both, into one index."""
        for replica in self._replicas:
            if replica.writer is None:
                await replica.mirror.step(0.001)

    async def _take_over(self, place: int, orderly: bool) -> None:
        """The writer dies, with what it had not sent, or leaves in order; its lease runs out."""
        before, after = self._writer, self._replicas[place]
        if after is before:
            return
        if orderly:
            await self._flush()
        with self._server.client() as admin:
            admin.delete(self._store.keys.lease(before.shelf.worker))
        self._zombies = [z for z in (*self._zombies, before) if z is not after]
        after.leave()
        assert await after.take_over()
        self._writer = after

    async def _zombie(self) -> None:
        """Those cut off go on for a while, as behind a partition: nothing of it gets through."""
        for replica in self._zombies:
            if replica.writer is not None:
                if self._engine.log:
                    await replica.hear(len(self._engine.log) - 1)
                if self._began_without(replica):
                    await self._contest(replica)
                else:
                    with pytest.raises(Fenced):
                        await _speak(replica.writer)
                    replica.leave()
        self._zombies.clear()

    def _began_without(self, replica: Replica) -> bool:
        """The writer's books are not what became of this one's."""
        assert self._writer.writer is not None
        assert replica.writer is not None
        return self._writer.writer.origin != replica.writer.origin

    async def _contest(self, replica: Replica) -> None:
        """Who knows more writes in the end, the other is refused."""
        both = (replica, self._writer)
        for one in (*both, replica):
            if one.writer is not None:
                try:
                    await _speak(one.writer)
                except Fenced:
                    one.leave()
        (self._writer,) = (one for one in both if one.writer is not None)


async def _speak(writer: Writer) -> None:
    await writer.flush()
    await writer.renew()
