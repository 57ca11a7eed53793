"""Replicas on a real server: what they hear of each other, and what its absence costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.errors import StoreError
from gateway.fleet.load import Lease, LoadBoard
from gateway.fleet.sharing.bus import RedisBus
from gateway.fleet.sharing.peers import Peers
from gateway.fleet.sharing.registrations import Registration, Registrations, RegistrationState
from gateway.fleet.sharing.sharing import LoadSharing, Pace
from gateway.fleet.sharing.words import Word, encode
from gateway.fleet.worker import WorkerSpec
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import BlockKey, WorkerId
from tests.e2e.proxy import stalling_proxy
from tests.servers import Server, cluster, sentinel_group, standalone

pytestmark = pytest.mark.anyio

A, B = WorkerId("http://a:1"), WorkerId("http://b:1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with standalone(tmp_path / "valkey") as server:
        yield server


@dataclass
class Replica:
    sharing: LoadSharing
    board: LoadBoard
    placed: list[tuple[WorkerId, list[BlockKey]]]

    def peers_at(self, worker: WorkerId) -> tuple[int, int, int]:
        load = self.board.add(worker)
        return load.peer_requests, load.peer_waiting_tokens, load.peer_decoding_tokens


@asynccontextmanager
async def replica(url: str, name: str, *, silent_after_s: float = 2.5) -> AsyncIterator[Replica]:
    store = Store(parse_store_url(url))
    board = LoadBoard()
    board.add(A)
    board.add(B)
    placed: list[tuple[WorkerId, list[BlockKey]]] = []

    def place(worker: WorkerId, keys: Sequence[BlockKey], now: float) -> None:
        placed.append((worker, list(keys)))

    sharing = LoadSharing(
        name, RedisBus(store, quiet_s=0.1), board, Peers(name, board, place, silent_after_s=silent_after_s),
        clock=time.monotonic, random=lambda: 0.0, pace=Pace(retry=0.1),
    )  # fmt: skip
    sharing.start()
    try:
        yield Replica(sharing, board, placed)
    finally:
        await sharing.close()
        await store.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 30 s"
        await asyncio.sleep(0.01)


async def test_a_lease_here_is_load_there_until_it_is_released(server: Server) -> None:
    async with replica(server.url, "one") as one, replica(server.url, "two") as two:
        await until(lambda: one.sharing.status().listening and two.sharing.status().listening, "listeners")
        lease = Lease.take(one.board.add(A), prompt_tokens=100, matched_tokens=36)
        await until(lambda: two.peers_at(A) == (1, 64, 0), "reserved")
        lease.first_byte()
        await until(lambda: two.peers_at(A) == (1, 0, 100), "decoding")
        lease.release()
        await until(lambda: two.peers_at(A) == (0, 0, 0), "released")
        assert one.peers_at(A) == (0, 0, 0)
        assert one.sharing.status().peers == ("two",)


async def test_a_placement_comes_with_its_load(server: Server) -> None:
    async with replica(server.url, "one") as one, replica(server.url, "two") as two:
        await until(lambda: two.sharing.status().listening, "a listener")
        Lease.take(one.board.add(B), prompt_tokens=48, matched_tokens=0)
        one.sharing.placed(B, [BlockKey(1), BlockKey(2), BlockKey(3)])
        await until(lambda: bool(two.placed), "the placement")
        assert two.placed == [(B, [1, 2, 3])]
        assert two.peers_at(B) == (1, 48, 0)
        assert one.placed == []


async def test_a_new_replica_learns_what_the_others_hold(server: Server) -> None:
    async with replica(server.url, "one") as one:
        Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
        await until(lambda: one.sharing.status().words_out >= 2, "old news")
        async with replica(server.url, "new") as new:
            await until(lambda: new.peers_at(A) == (1, 10, 0), "state, not news")


async def test_one_that_ends_in_order_takes_its_load_along_at_once(server: Server) -> None:
    async with replica(server.url, "one", silent_after_s=1e9) as one:
        async with replica(server.url, "two") as two:
            Lease.take(two.board.add(A), prompt_tokens=10, matched_tokens=0)
            await until(lambda: one.peers_at(A) == (1, 10, 0), "the load")
        await until(lambda: one.peers_at(A) == (0, 0, 0), "the goodbye")


async def test_one_that_dies_is_forgotten_with_its_load(server: Server) -> None:
    async with replica(server.url, "one", silent_after_s=0.5) as one:
        async with replica(server.url, "two") as two:
            Lease.take(two.board.add(A), prompt_tokens=10, matched_tokens=0)
            await until(lambda: one.peers_at(A) == (1, 10, 0), "the load")
            for task in two.sharing._tasks:  # kill -9: no goodbye
                task.cancel()
            two.sharing._tasks = []
        await until(lambda: one.peers_at(A) == (0, 0, 0), "the silence noticed")


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_redis_away_and_back(server: Server, how: str) -> None:
    async with replica(server.url, "one") as one, replica(server.url, "two") as two:
        lease = Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
        await until(lambda: two.peers_at(A) == (1, 10, 0), "the load")
        (server.kill if how == "killed" else server.pause)()
        await until(lambda: not one.sharing.status().speaking, "that nobody is told")
        await until(lambda: not two.sharing.status().listening, "that nobody is heard")
        await until(lambda: two.peers_at(A) == (0, 0, 0), "nothing known of silent peers")
        one.sharing.placed(A, [BlockKey(1)])  # costs nobody anything
        (server.start if how == "killed" else server.resume)()
        await until(lambda: two.peers_at(A) == (1, 10, 0), "the load again")
        assert one.sharing.status().speaking
        lease.release()
        await until(lambda: two.peers_at(A) == (0, 0, 0), "the release")


async def test_over_a_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        async with replica(nodes.url, "one") as one, replica(nodes.url, "two") as two:
            Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
            await until(lambda: two.peers_at(A) == (1, 10, 0), "the load")
            store = Store(parse_store_url(nodes.url))
            book = Registrations(store, time.time)
            for port in range(6):
                await book.put(Registration(WorkerSpec(f"http://w:{port + 1}"), RegistrationState.READY))
            assert len((await book.list()).registered) == 6
            await store.close()


async def test_one_cut_off_is_forgotten_and_heard_again(server: Server) -> None:
    with stalling_proxy(server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with replica(server.url, "one") as one, replica(url, "two") as two:
            Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
            Lease.take(two.board.add(B), prompt_tokens=20, matched_tokens=0)
            await until(lambda: two.peers_at(A) == (1, 10, 0) and one.peers_at(B) == (1, 20, 0), "peers")
            proxy.stall()
            await until(lambda: one.peers_at(B) == (0, 0, 0), "the one cut off forgotten")
            await until(lambda: two.peers_at(A) == (0, 0, 0), "and it knows of nobody")
            assert one.sharing.status().speaking
            assert one.sharing.status().listening
            await until(lambda: not two.sharing.status().listening, "the cut noticed")
            proxy.heal()
            await until(
                lambda: two.peers_at(A) == (1, 10, 0) and one.peers_at(B) == (1, 20, 0), "peers again"
            )


async def test_sentinel_names_another_master(tmp_path: Path) -> None:
    with sentinel_group(tmp_path) as group:
        async with replica(group.url, "one") as one, replica(group.url, "two") as two:
            Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
            await until(lambda: two.peers_at(A) == (1, 10, 0), "the load")
            group.master.kill()
            Lease.take(one.board.add(A), prompt_tokens=20, matched_tokens=0)
            await until(lambda: two.peers_at(A) == (2, 30, 0), "the load through the new master")


async def test_a_cluster_loses_the_channels_master_and_gets_it_back(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        master = nodes.owner("pgw:placements")
        async with replica(nodes.url, "one") as one, replica(nodes.url, "two") as two:
            Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
            await until(lambda: two.peers_at(A) == (1, 10, 0), "the load")
            master.kill()
            await until(lambda: not two.sharing.status().listening, "the loss")
            master.start()
            await until(lambda: two.peers_at(A) == (1, 10, 0), "the load again")


async def test_strangers_on_the_channel_are_counted_and_passed_over(server: Server) -> None:
    async with replica(server.url, "one") as one, replica(server.url, "two") as two:
        await until(lambda: two.sharing.status().listening, "a listener")
        with server.client() as client:
            client.publish("pgw:placements", b"hello")
        await until(lambda: two.sharing.status().unread == 1, "the stranger counted")
        Lease.take(one.board.add(A), prompt_tokens=10, matched_tokens=0)
        await until(lambda: two.peers_at(A) == (1, 10, 0), "the load")


async def test_a_registration_runs_out_unless_it_is_renewed(server: Server) -> None:
    now = [1000.0]
    store = Store(parse_store_url(server.url))
    short = Registrations(store, lambda: now[0], lease_s=0.2)
    book = Registrations(store, lambda: now[0])
    ready = Registration(WorkerSpec("http://a:1"), RegistrationState.READY)
    draining = Registration(WorkerSpec("http://b:1"), RegistrationState.DRAINING)
    await short.put(ready)
    await book.put(draining)
    with server.client() as client:
        await until(lambda: not client.exists(store.keys.registration(ready.id)), "the lease run out")
    listing = await book.list()
    assert (list(listing.registered), list(listing.lapsed)) == ([draining], [ready.id])
    await book.put(ready)
    listing = await book.list()
    assert {r.id: r.state for r in listing.registered} == {
        ready.id: RegistrationState.READY,
        draining.id: RegistrationState.DRAINING,
    }
    with server.client() as client:
        assert 600 < client.ttl(store.keys.workers()) <= 1200, "with the last worker the list goes too"
        client.delete(store.keys.registration(ready.id))
    now[0] += 601 + 8
    assert list((await book.list()).lapsed) == []  # long silent: forgotten
    await store.close()


class _LateBus:
    """It takes three seconds, by this clock, until anything is heard there; then all is well."""

    def __init__(self) -> None:
        self.now = 0.0
        self._words: asyncio.Queue[bytes] = asyncio.Queue()
        self.listens = 0

    async def publish(self, data: bytes) -> None:
        if self.now < 3.0:
            raise StoreError("away", kind="unavailable")
        self._words.put_nowait(data)

    async def listen(self) -> AsyncGenerator[bytes | None]:
        self.listens += 1
        self.now += 3.0
        yield encode(Word("other", 1, {}, (), True))
        while True:
            yield await self._words.get()


async def test_who_was_just_heard_is_not_called_dead(caplog: pytest.LogCaptureFixture) -> None:
    """Redis hung while it was asked for the channel, and comes back: own words come, a while later."""
    caplog.set_level("INFO")
    bus, board = _LateBus(), LoadBoard()
    sharing = LoadSharing(
        "me", bus, board, Peers("me", board, lambda *_: None, silent_after_s=2.5),
        clock=lambda: bus.now, random=lambda: 0.0, pace=Pace(retry=0.01),
    )  # fmt: skip
    sharing.start()
    await until(lambda: sharing.status().listening and sharing.status().speaking, "both")
    await until(lambda: bus._words.empty() and bus.listens == 1, "own words")
    assert "peers are heard" in caplog.messages
    assert not [line for line in caplog.messages if line.startswith("peers are not heard")]
    await sharing.close()


class _HalfBus:
    """A cluster that has lost a master, by a clock of its own: of two words one arrives, and is heard. Once
    it is `well`, all do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.well = False
        self.tries = 0
        self._words: asyncio.Queue[bytes] = asyncio.Queue()

    async def publish(self, data: bytes) -> None:
        self.tries += 1
        self.now += 0.5
        if not self.well and self.tries % 2:
            raise StoreError("master down", kind="unavailable")
        self._words.put_nowait(data)

    async def listen(self) -> AsyncGenerator[bytes | None]:
        yield await self._words.get()
        if not self.well:
            raise StoreError("master down", kind="unavailable")
        while True:
            yield await self._words.get()


async def test_what_comes_and_goes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.fleet.sharing")
    bus, board = _HalfBus(), LoadBoard()
    sharing = LoadSharing(
        "me", bus, board, Peers("me", board, lambda *_: None, silent_after_s=2.5),
        clock=lambda: bus.now, random=lambda: 0.0, pace=Pace(tick=0.001, beat=0.0, retry=0.001, sure=3.0),
    )  # fmt: skip
    sharing.start()
    await until(lambda: bus.tries > 40, "twenty failures")
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "load is not shared", "peers are heard", "peers are not heard",
    ]  # fmt: skip
    bus.well = True
    await until(lambda: len(caplog.messages) == 5, "that all is well again")
    assert sorted(caplog.messages[3:]) == ["load is shared with other replicas", "peers are heard"]
    assert [record.for_s for record in caplog.records[3:]] == [3.0, 3.0]  # type: ignore[attr-defined]
    await sharing.close()
