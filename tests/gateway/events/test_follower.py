"""Following over real sockets: a publisher that loses, forgets, restarts and stays silent at will."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import zmq
import zmq.asyncio

from gateway.errors import ConfigError
from gateway.events.follower import Follower, FollowerState
from gateway.events.ledger import Ledger
from gateway.events.ports import IndexSink, NullObserver, Source
from gateway.events.silence import SilenceWatch
from gateway.events.stream import Position
from gateway.index.changes import Change
from gateway.index.prefix import PrefixIndex
from gateway.kv.codec import encode_batch
from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope, WorkerId

pytestmark = pytest.mark.anyio

W = WorkerId("http://engine")
TOKENS = tuple(range(16 * 64))
KEYS = block_keys(root_key(CacheScope("m")), pack_tokens(TOKENS))
END = b"\xff" * 8


def stored(first: int, last: int) -> BlockStored:
    """Blocks `first`…`last`-1 of one prompt; block n is called 1000 + n."""
    parent = 1000 + first - 1 if first else None
    return BlockStored(tuple(range(1000 + first, 1000 + last)), parent, TOKENS[first * 16 : last * 16], 16)


def removed(*blocks: int) -> BlockRemoved:
    return BlockRemoved(tuple(1000 + block for block in blocks))


class Engine:
    """A publisher like vLLM's. `with_topic` is the framing of replies from 0.26 on."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        ports: tuple[int, int],
        *,
        kept: int = 10_000,
        with_topic: bool = True,
    ) -> None:
        self._context = context
        self._kept = kept
        self._with_topic = with_topic
        self.source = Source(f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}")
        self.asked: list[int] = []
        self.answering = True
        self._now = 0.0
        self._start()

    def _start(self) -> None:
        self._next = 0
        self._buffer: list[tuple[int, bytes]] = []
        self._pub = self._context.socket(zmq.XPUB)  # a PUB that can tell when it is subscribed to
        self._pub.set(zmq.XPUB_VERBOSER, 1)
        self._router = self._context.socket(zmq.ROUTER)
        self._pub.bind(self.source.events)
        assert self.source.replay is not None
        self._router.bind(self.source.replay)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _start_again(self) -> None:
        async with asyncio.timeout(20):
            while True:
                try:
                    return self._start()
                except zmq.ZMQError:  # the old sockets are closed in the background
                    self._pub.close(linger=0)
                    self._router.close(linger=0)
                    await asyncio.sleep(0.005)

    async def subscribed(self) -> None:
        """Until somebody subscribes: a moment after the connection, and only then is anything heard."""
        async with asyncio.timeout(20):
            while not (await self._pub.recv()).startswith(b"\x01"):
                pass  # somebody left

    async def followed(self) -> None:
        """Until somebody subscribes and has asked for a replay."""
        await self.subscribed()
        await until(lambda: bool(self.asked))

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close(linger=0)
        self._router.close(linger=0)

    async def restart(self, *events: KVEvent) -> None:
        """Another life, in which this batch is published before anyone has reconnected."""
        await self.stop()
        await self._start_again()
        if events:
            await self.publish(*events, heard=False)

    async def publish(self, *events: KVEvent, heard: bool = True, dp_rank: int | None = 0) -> None:
        """`heard` False: it gets lost on the way."""
        self._now += 1.0
        await self.publish_raw(encode_batch(EventBatch(self._now, events, dp_rank)), heard=heard)

    async def publish_raw(self, payload: bytes, *, heard: bool = True) -> None:
        seq, self._next = self._next, self._next + 1
        self._buffer = [*self._buffer, (seq, payload)][-self._kept :]
        if heard:
            await self._pub.send_multipart([b"kv-events", seq.to_bytes(8, "big"), payload])

    async def send_frames(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def _serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if not self.answering:
                continue
            topic = [b"kv-events"] if self._with_topic else []
            for seq, payload in self._buffer:
                if seq >= self.asked[-1]:
                    await self._router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", *([b""] if topic else []), END, b""])


@dataclass
class Notes(NullObserver):
    """Remembers what it hears."""

    ups: list[bool] = field(default_factory=list)
    batches: list[tuple[WorkerId, int, float | None]] = field(default_factory=list)
    bad: int = 0
    gaps: list[int] = field(default_factory=list)
    failed_replays: int = 0
    epochs: list[str] = field(default_factory=list)

    def connected(self, worker: WorkerId, up: bool) -> None:
        self.ups.append(up)

    def batch(self, worker: WorkerId, blocks: int, lag: float | None) -> None:
        self.batches.append((worker, blocks, lag))

    def malformed(self, worker: WorkerId, events: int) -> None:
        self.bad += events

    def gap(self, worker: WorkerId, batches: int) -> None:
        self.gaps.append(batches)

    def replay_failed(self, worker: WorkerId) -> None:
        self.failed_replays += 1

    def epoch(self, worker: WorkerId, reason: str) -> None:
        self.epochs.append(reason)


class Scene:
    """An index, a follower, an engine."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.context = context
        self.index = PrefixIndex()
        self.index.add_worker(W)
        self.notes = Notes()
        self.engines: list[Engine] = []

    def engine(self, ports: tuple[int, int], *, kept: int = 10_000, with_topic: bool = True) -> Engine:
        self.engines.append(Engine(self.context, ports, kept=kept, with_topic=with_topic))
        return self.engines[-1]

    def depth(self, worker: WorkerId = W) -> int:
        return self.index.held_depth(worker, KEYS)

    @asynccontextmanager
    async def following(self, source: Source, **options: object) -> AsyncIterator[Follower]:
        settings: dict[str, object] = {
            "sink": IndexSink(self.index),
            "make_ledger": lambda: Ledger("m"),
            "context": self.context,
            "observer": self.notes,
            "wall": lambda: 1_000_000.0,
            **options,
        }
        follower = Follower(W, source, **settings)  # type: ignore[arg-type]
        task = asyncio.get_running_loop().create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def scene(anyio_backend: str) -> AsyncIterator[Scene]:
    context = zmq.asyncio.Context()
    scene = Scene(context)
    yield scene
    for engine in scene.engines:
        await engine.stop()
    context.destroy(linger=0)


@pytest.fixture
def ports(free_port: Callable[[], int]) -> tuple[int, int]:
    return free_port(), free_port()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  what is waited for shows in an index, not in an event
            await asyncio.sleep(0.005)


async def test_live_batches_reach_the_index(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source) as follower:
        await engine.followed()
        await engine.publish(stored(0, 3))
        await engine.publish(stored(3, 5), removed(4))
        await until(lambda: scene.depth() == 4)
        assert follower.status().state is FollowerState.FOLLOWING
        assert follower.status().next_seq == 2
        await until(lambda: len(scene.notes.batches) == 2)
        assert scene.notes.batches == [(W, 3, 999_999.0), (W, 2, 999_998.0)]
        await engine.publish(AllBlocksCleared())
        await until(lambda: scene.depth() == 0)
    assert scene.notes.epochs == []


@pytest.mark.parametrize("with_topic", [True, False], ids=["since 0.26", "before"])
async def test_first_contact_replays_what_was_before(
    scene: Scene, ports: tuple[int, int], with_topic: bool
) -> None:
    engine = scene.engine(ports, with_topic=with_topic)
    for block in range(40):
        await engine.publish(stored(block, block + 1))
    async with scene.following(engine.source):
        await until(lambda: scene.depth() == 40)
        await engine.publish(stored(40, 42))
        await until(lambda: scene.depth() == 42)
    assert (scene.notes.gaps, scene.notes.epochs) == ([], [])
    assert {lag for _, _, lag in scene.notes.batches[:40]} == {None}


async def test_a_long_lived_engine_is_indexed_from_the_oldest_batch_there_is(
    scene: Scene, ports: tuple[int, int]
) -> None:
    engine = scene.engine(ports, kept=3)
    for _ in range(20):
        await engine.publish(stored(5, 6))  # a child whose parent nobody can name any more
    await engine.publish(stored(0, 2))
    async with scene.following(engine.source) as follower:
        await until(lambda: scene.depth() == 2)
        [stats] = follower.status().ledgers.values()
        assert stats.waiting == 2
        await engine.publish(stored(2, 5))
        await until(lambda: scene.depth() == 6)
    assert scene.notes.epochs == []


async def test_a_gap_is_replayed(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source) as follower:
        await engine.followed()
        await engine.publish(stored(0, 1))
        await until(lambda: scene.depth() == 1)
        await engine.publish(stored(1, 2), heard=False)
        await engine.publish(stored(2, 3), heard=False)
        await engine.publish(stored(3, 4))
        await until(lambda: scene.depth() == 4)
        assert engine.asked == [0, 0]
        assert follower.status().gaps == 1
    assert (scene.notes.gaps, scene.notes.epochs) == ([2], [])


async def test_a_gap_beyond_replay_is_a_new_epoch_with_what_follows(
    scene: Scene, ports: tuple[int, int]
) -> None:
    engine = scene.engine(ports, kept=2)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.publish(stored(0, 9))
        await until(lambda: scene.depth() == 9)
        await engine.publish(removed(*range(9)), heard=False)
        for _ in range(3):
            await engine.publish(stored(20, 21), heard=False)
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
    assert scene.notes.epochs == ["lost"]


async def test_a_gap_without_replay_is_a_new_epoch_too(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(Source(engine.source.events)):
        await engine.subscribed()
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
        await engine.publish(removed(1), heard=False)
        await engine.publish(stored(0, 1))
        await until(lambda: scene.depth() == 1)
    assert scene.notes.epochs == ["lost"]
    assert engine.asked == []


async def test_a_restarted_engine_loses_its_blocks_before_it_says_anything(
    scene: Scene, ports: tuple[int, int]
) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.publish(stored(0, 5))
        await until(lambda: scene.depth() == 5)
        await engine.restart()
        await until(lambda: scene.depth() == 0)
        await engine.subscribed()
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
    assert scene.notes.epochs == ["restarted"]
    assert scene.notes.ups[:2] == [True, False]


async def test_a_restart_behind_our_back_is_found_by_content(scene: Scene, ports: tuple[int, int]) -> None:
    """The new life published as many batches as the old one before we were back: no number tells."""
    engine = scene.engine(ports)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.publish(stored(0, 5))
        await until(lambda: scene.depth() == 5)
        await engine.restart(stored(0, 3))
        await until(lambda: scene.depth() == 3)
        await engine.subscribed()
        await engine.publish(stored(3, 4))
        await until(lambda: scene.depth() == 4)
    assert scene.notes.epochs == ["restarted"]


async def test_a_connection_that_merely_broke_costs_nothing(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.publish(stored(0, 5))
        await until(lambda: scene.depth() == 5)
        buffer = engine._buffer
        await engine.restart()
        engine._buffer, engine._next = buffer, 1  # the same life, on a new connection
        await engine.subscribed()
        await engine.publish(stored(5, 6), heard=False)
        await engine.publish(stored(6, 7))
        await until(lambda: scene.depth() == 7)
    assert scene.notes.epochs == []


async def test_without_replay_a_new_connection_is_a_new_epoch(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(Source(engine.source.events)):
        await engine.subscribed()
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
        await engine.restart()
        await until(lambda: scene.depth() == 0)
    assert scene.notes.epochs == ["lost"]


async def test_an_idle_engine_is_looked_at_now_and_then(scene: Scene, ports: tuple[int, int]) -> None:
    """The last batch before silence got lost: nothing behind it ever shows the gap."""
    engine = scene.engine(ports)
    async with scene.following(engine.source, check_every=0.05):
        await engine.followed()
        await engine.publish(stored(0, 1))
        await until(lambda: scene.depth() == 1)
        await engine.publish(stored(1, 2), heard=False)
        await until(lambda: scene.depth() == 2)
    assert scene.notes.gaps == []


async def test_an_engine_that_comes_up_later_is_found(scene: Scene, ports: tuple[int, int]) -> None:
    source = Source(f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}")
    async with scene.following(source, check_every=0.01) as follower:
        assert follower.status().state is FollowerState.CONNECTING
        await asyncio.sleep(0.05)
        engine = scene.engine(ports)
        await engine.publish(stored(0, 4), heard=False)
        await until(lambda: scene.depth() == 4)
        assert follower.status().state is FollowerState.FOLLOWING


async def test_a_replay_endpoint_that_does_not_answer_is_told_and_live_events_count(
    scene: Scene, ports: tuple[int, int]
) -> None:
    engine = scene.engine(ports)
    engine.answering = False
    async with scene.following(engine.source, replay_timeout=0.05):
        await engine.subscribed()
        await until(lambda: scene.notes.failed_replays == 1)
        await engine.publish(stored(0, 3))
        await until(lambda: scene.depth() == 3)
        await engine.publish(stored(3, 4), heard=False)
        await engine.publish(stored(0, 1))
        await until(lambda: scene.depth() == 1)
    assert scene.notes.epochs == ["lost"]


async def test_rubbish_is_counted_and_costs_nothing_else(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.send_frames(b"one frame")
        await engine.send_frames(b"topic", b"short seq", b"payload")
        await engine.publish_raw(b"no batch")
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
    assert scene.notes.bad == 3
    assert scene.notes.gaps == []


async def test_ranks_are_workers_of_their_own(scene: Scene, ports: tuple[int, int]) -> None:
    ranks = {rank: WorkerId(f"http://engine#dp{rank}") for rank in (0, 1)}
    for worker in ranks.values():
        scene.index.add_worker(worker)
    engine = scene.engine(ports)
    async with scene.following(engine.source, worker_of=ranks.get):
        await engine.followed()
        await engine.publish(stored(0, 2), dp_rank=0)
        await engine.publish(stored(0, 5), dp_rank=1)
        await engine.publish(stored(0, 9), dp_rank=7)
        await engine.publish(removed(1), dp_rank=0)
        await until(lambda: scene.depth(ranks[0]) == 1)
        assert scene.depth(ranks[1]) == 5
        assert scene.depth() == 0
        await engine.restart()
        await until(lambda: scene.depth(ranks[0]) == scene.depth(ranks[1]) == 0)
    assert scene.notes.epochs == ["restarted", "restarted"]


async def test_a_worker_that_was_removed_does_not_come_back(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source):
        await engine.followed()
        await engine.publish(stored(0, 2))
        await until(lambda: scene.depth() == 2)
        scene.index.remove_worker(W)
        await engine.publish(stored(2, 4))
        await until(lambda: len(scene.notes.batches) == 2)
    assert scene.index.match(KEYS, 0.0) == {}
    scene.index.add_worker(W)
    assert scene.depth() == 0


class SlowSink:
    """Takes one batch, then waits to be told."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.go_on = asyncio.Event()

    async def apply(self, worker: WorkerId, changes: Sequence[Change], position: Position) -> None:
        self.positions.append(position.next_seq)
        await self.go_on.wait()


async def test_a_slow_sink_holds_events_back_and_loses_none(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    sink = SlowSink()
    async with scene.following(engine.source, sink=sink):
        await engine.followed()
        for block in range(30):
            await engine.publish(stored(block, block + 1))
        await until(lambda: sink.positions == [1])
        await engine.publish(stored(30, 31))
        assert sink.positions == [1]
        sink.go_on.set()
        await until(lambda: sink.positions == list(range(1, 32)))
    assert scene.notes.gaps == []


async def test_cancelling_in_the_middle_of_a_replay_closes_everything(
    scene: Scene, ports: tuple[int, int]
) -> None:
    engine = scene.engine(ports)
    engine.answering = False
    async with scene.following(engine.source):
        await engine.followed()
    await engine.stop()
    assert [socket.closed for socket in scene.context._sockets] == [True] * len(scene.context._sockets)


async def test_another_follower_goes_on_where_one_stopped(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source) as first:
        await engine.followed()
        await engine.publish(stored(0, 2))
        await engine.publish(stored(0, 2))
        await until(lambda: first.status().next_seq == 2)
    snapshot = first.snapshot()
    await engine.publish(removed(1))
    async with scene.following(engine.source, snapshot=snapshot):
        await engine.subscribed()
        await until(lambda: engine.asked == [0, 1])
        await engine.publish(removed(1))
        await until(lambda: scene.depth() == 1)
    assert scene.index.copies(W, BlockKey(KEYS[0])) == 2
    assert scene.notes.epochs == []


async def test_an_engine_that_answers_but_tells_nothing_is_silent(
    scene: Scene, ports: tuple[int, int]
) -> None:
    now = 0.0
    engine = scene.engine(ports)
    watch = SilenceWatch(patience=30.0, min_answers=3)
    async with scene.following(engine.source, watch=watch, clock=lambda: now) as follower:
        await engine.subscribed()
        await until(lambda: scene.notes.ups == [True])
        for second in (0.0, 10.0, 29.0):
            now = second
            follower.answered(new_blocks=4, took_s=0.5)
        assert follower.status().state is FollowerState.FOLLOWING
        follower.answered(new_blocks=0, took_s=0.5)
        now = 30.0
        assert follower.status().state is FollowerState.SILENT
        assert engine.source.events in follower.status().reason
        await engine.publish(stored(0, 1))
        await until(lambda: follower.status().state is FollowerState.FOLLOWING)


async def test_blocks_of_another_size_are_reported(scene: Scene, ports: tuple[int, int]) -> None:
    engine = scene.engine(ports)
    async with scene.following(engine.source) as follower:
        await engine.followed()
        await engine.publish(BlockStored((1,), None, (1, 2, 3), 3))
        await until(lambda: follower.status().state is FollowerState.UNSUPPORTED)
        assert follower.status().reason == "blocks of 3 tokens can't be reconciled with blocks of 16"


@pytest.mark.parametrize("source", [Source("nonsense"), Source("tcp://127.0.0.1:port")])
async def test_an_endpoint_that_is_none_is_a_clear_error(scene: Scene, source: Source) -> None:
    follower = Follower(
        W, source, sink=IndexSink(scene.index), make_ledger=lambda: Ledger("m"), context=scene.context
    )
    with pytest.raises(ConfigError, match="should be a ZMQ endpoint"):
        await follower.run()


async def test_a_connection_that_comes_and_goes_is_told_of_once(scene: Scene, ports: tuple[int, int]) -> None:
    """And that it is back when it has stayed for three seconds, by the follower's clock."""
    engine, now = scene.engine(ports), 0.0
    async with scene.following(engine.source, clock=lambda: now, check_every=0.01):
        await engine.followed()
        for _ in range(3):
            await engine.restart()
            now += 0.9
            await engine.subscribed()
        assert scene.notes.ups == [True, False]

        def stays() -> bool:
            nonlocal now
            now += 0.5
            return len(scene.notes.ups) == 3

        await until(stays)
        assert scene.notes.ups == [True, False, True]
