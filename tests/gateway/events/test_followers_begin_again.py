"""A follower that fails by surprise is made anew, and ends up knowing what the engine holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq.asyncio

from gateway.backoff import Backoff
from gateway.events.balance import Balance
from gateway.events.followers import Followers
from gateway.events.ports import IndexSink, NullObserver
from gateway.events.share import Share
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.shelf import load_scripts
from gateway.lasting import Lasting
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, WorkerId
from tests.gateway.replication.rig import KEYS, TERMS, Engine, Group, Observer, W, eventually, group
from tests.servers import standalone

pytestmark = pytest.mark.anyio

QUICK = Lasting(backoff=lambda: Backoff(first=0.01, most=0.05))
INFO = EngineInfo(model="m", block_size=16)


def worker(engine: Engine) -> Worker:
    return Worker(WorkerSpec(W, events=engine.source.events, replay=engine.source.replay), info=INFO)


class Index(PrefixIndex):
    """Fails once, as no index should."""

    broken = False

    def store(self, worker: WorkerId, keys: Sequence[BlockKey], parent: BlockKey | None = None) -> None:
        if self.broken:
            self.broken = False
            raise KeyError("a fault of our own")
        super().store(worker, keys, parent)


def knows(index: PrefixIndex, blocks: int) -> Callable[[], bool]:
    return lambda: set(index.held(W)) == set(KEYS[:blocks])


async def test_alone(caplog: pytest.LogCaptureFixture) -> None:
    context, index = zmq.asyncio.Context(), Index()
    index.add_worker(W)
    engine = Engine(context)
    followers = Followers(
        IndexSink(index), NullObserver(), unit_of=lambda _: 16, context=context, lasting=QUICK
    )
    followers.added(worker(engine))
    await engine.store(20)
    await eventually(knows(index, 20))
    index.broken = True
    await engine.store(2)
    await eventually(knows(index, 22))
    assert [record.message for record in caplog.records] == ["a task failed; it is begun again"]
    status = followers.status(W)
    assert status is not None
    assert (status.state, status.reason) == ("following", "")
    await followers.close()
    await engine.close()
    context.term()


@asynccontextmanager
async def third(url: str, engine: Engine, index: PrefixIndex) -> AsyncIterator[Followers]:
    """A replica beside the rig's, whose followers are begun again."""
    context, store = zmq.asyncio.Context(), Store(parse_store_url(url))
    names = (f"third-{number}".encode() for number in itertools.count())
    index.add_worker(W)
    share = Share(
        store, load_scripts(), "third", index, Observer(), time.monotonic, lambda: 0.5, lambda: next(names),
        Balance(lambda: 0.5), TERMS,
    )  # fmt: skip
    followers = Followers(
        IndexSink(index), NullObserver(), unit_of=lambda _: 16, context=context, share=share, lasting=QUICK
    )
    followers.added(worker(engine))
    try:
        yield followers
    finally:
        await followers.close()
        await store.close()
        context.term()


@asynccontextmanager
async def beside_a_pair(url: str, index: PrefixIndex) -> AsyncIterator[tuple[Group, Followers]]:
    """It comes when one of the two writes: the lease is not its own by chance."""
    async with group(url) as pair:
        await eventually(pair.shared)
        async with third(url, pair.engine, index) as followers:
            yield pair, followers


async def test_a_mirror(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = Index()
    with standalone(tmp_path) as server:
        async with beside_a_pair(server.url, index) as (pair, followers):
            await pair.engine.store(20)
            await eventually(lambda: pair.shared() and set(index.held(W)) == set(KEYS[:20]))
            assert followers.shared()[W].share_status().role == "mirror"
            index.broken = True
            await pair.engine.store(2)
            await eventually(knows(index, 22))
            messages = [record.message for record in caplog.records]
            assert messages.count("a task failed; it is begun again") == 1


async def test_a_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = Index()
    with standalone(tmp_path) as server:
        async with beside_a_pair(server.url, index) as (pair, followers):
            await pair.engine.store(20)
            await eventually(lambda: pair.shared() and set(index.held(W)) == set(KEYS[:20]))
            await pair.mirror.leave()
            await pair.writer.leave()
            await eventually(lambda: followers.shared()[W].share_status().role == "writer")
            index.broken = True
            await pair.engine.store(2)
            await eventually(knows(index, 22))
            await eventually(lambda: followers.shared()[W].share_status().role == "writer")
            messages = [record.message for record in caplog.records]
            assert messages.count("a task failed; it is begun again") == 1


@pytest.mark.parametrize("entry", [{"what": "is this"}, {**dict.fromkeys("entrp", ""), "n": "x"}])
async def test_a_mirror_that_reads_what_no_writer_wrote_loads_anew(
    tmp_path: Path, entry: dict[str, str]
) -> None:
    with standalone(tmp_path) as server, server.client() as client:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            mirror = pair.mirror
            loads = mirror.follower.share_status().loads
            client.xadd(mirror.store.keys.changes(W), entry)
            await eventually(lambda: mirror.follower.share_status().loads > loads)
            await pair.engine.store(2)
            await pair.converged()
