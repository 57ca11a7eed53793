"""An engine's event log, and replicas that follow it under a lease, driven step by step: for tests that
decide who speaks when. Redis is real; only the sockets between engine and follower are left out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from gateway.events.books import BookSink, load_books
from gateway.events.stream import EventStream, Position, Verdict
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.mirror import Mirror
from gateway.index.replication.shelf import Grant, Scripts, Shelf
from gateway.index.replication.writer import Refill, Terms, Writer
from gateway.kv.codec import decode_batch, encode_batch
from gateway.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.store.connection import Store
from gateway.types import BlockKey, CacheScope, WorkerId

W = WorkerId("http://engine:8000")
MODEL = "m"
NODES = 40


def path(node: int) -> list[int]:
    """Block numbers from a root to `node`; each node's parent is (node - 1) // 3, roots are 1, 2 and 3."""
    found = []
    while node:
        found.append(node)
        node = (node - 1) // 3
    return found[::-1]


def tokens(node: int) -> tuple[int, ...]:
    return tuple(range(node * 100, node * 100 + 16))


def key_of(node: int) -> BlockKey:
    flat = [token for block in path(node) for token in tokens(block)]
    return block_keys(root_key(CacheScope(MODEL)), pack_tokens(flat))[-1]


KEYS = {node: key_of(node) for node in range(1, NODES)}


class Engine:
    """Stores and evicts blocks, copies too, and keeps every batch of this life for replay."""

    def __init__(self) -> None:
        self.truth: Counter[int] = Counter()
        self.log: list[bytes] = []
        self._ticks = itertools.count(1)

    def ends(self) -> list[int]:
        """Blocks that can be evicted: nothing that it holds builds on them."""
        held = self.truth
        return [n for n in held if held[n] and not any(held[c] for c in range(3 * n + 1, 3 * n + 4))]

    def store(self, node: int, *, again: bool = False) -> None:
        run, start = path(node), 0
        while start < len(run) - 1 and self.truth[run[start]]:
            start += 1
        start -= bool(start and again)
        parent = run[start - 1] if start else None
        run = run[start:]
        self.truth.update(run)
        flat = tuple(token for block in run for token in tokens(block))
        self._say(BlockStored(tuple(run), parent, flat, 16))

    def remove(self, node: int) -> None:
        self.truth[node] -= 1
        self._say(BlockRemoved((node,)))

    def clear(self) -> None:
        self.truth.clear()
        self._say(AllBlocksCleared())

    def restart(self) -> None:
        """Another life: nothing held, numbers from 0, and not a word about it."""
        self.truth.clear()
        self.log.clear()

    def holdings(self) -> dict[BlockKey, int]:
        return {KEYS[node]: copies for node, copies in self.truth.items() if copies}

    def _say(self, *events: KVEvent) -> None:
        self.log.append(encode_batch(EventBatch(float(next(self._ticks)), events)))


class Replica:
    """A mirror; after `take_over` the writer, until another takes over."""

    def __init__(
        self, name: str, store: Store, scripts: Scripts, engine: Engine, epochs: Iterator[bytes]
    ) -> None:
        self.name = name
        self.index = PrefixIndex()
        self.index.add_worker(W)
        self.shelf = Shelf(store, W, scripts)
        self.mirror = Mirror(self.shelf, self.index)
        self.sink: BookSink | None = None
        self.writer: Writer | None = None
        self.refills: list[str] = []
        self._engine = engine
        self._epochs = epochs
        self._stream = EventStream()

    async def take_over(self, *, hears: bool = True) -> bool:
        """As a SharedFollower does it; False where another holds the lease. Unless it `hears`, the engine
        repeats nothing to it."""
        grant = await self.shelf.acquire(self.name, 60.0)
        if grant is None:
            return False
        await self.mirror.settle()
        sink = BookSink(W, self.index, MODEL, 16)
        snapshot = await load_books(self.shelf, grant, sink)
        self.sink, self._stream = sink, EventStream()
        if snapshot is None:
            sink.make_ledger()
            self.index.clear(W)
        else:
            self._stream = EventStream(snapshot.position)
        sink.writer = self.writer = self._writer(grant, sink, None if snapshot is not None else "no books")
        if hears:
            await self.catch_up()
        return True

    def leave(self) -> None:
        """No longer the writer: what it knows beyond Redis is void."""
        self.sink = self.writer = None
        self.mirror.distrust()

    async def hear(self, seq: int) -> None:
        """Batch `seq` arrives, in its turn or not, as a Follower takes it."""
        payload = self._engine.log[seq]
        verdict = self._stream.live(seq, payload)
        if verdict in (Verdict.REPLAY, Verdict.RESTARTED):
            await self._obey(verdict)
            await self.catch_up()
            verdict = self._stream.live(seq, payload)
        assert verdict in (Verdict.APPLY, Verdict.SKIP)
        if verdict is Verdict.APPLY:
            await self._apply(payload)

    async def catch_up(self) -> None:
        while not await self._replay():
            pass

    def copies(self) -> dict[BlockKey, int]:
        return {key: self.index.copies(W, key) for key in self.index.held(W)}

    def refilled(self, reason: str) -> None:
        self.refills.append(reason)

    def _writer(self, grant: Grant, sink: BookSink, refill: Refill | None) -> Writer:
        return Writer(
            self.shelf, self.name, grant, whole=sink.whole, known=lambda: len(sink.ledger),
            new_epoch=lambda: next(self._epochs),
            observer=self, clock=lambda: 0.0, terms=Terms(lease_s=60.0), refill=refill,
        )  # fmt: skip

    async def _replay(self) -> bool:
        stream, start = self._stream, self._stream.begin_replay()
        for seq, payload in list(enumerate(self._engine.log))[start:]:
            verdict = stream.replayed(seq, payload)
            await self._obey(verdict)
            if verdict is Verdict.RESTARTED:
                return False
            if verdict is Verdict.APPLY:
                await self._apply(payload)
        verdict = stream.end_replay()
        await self._obey(verdict)
        return verdict is Verdict.SKIP

    async def _obey(self, verdict: Verdict) -> None:
        if verdict is Verdict.RESTARTED:
            assert self.sink is not None
            await self.sink.apply(W, self.sink.ledger.reset(), Position(0, 0))

    async def _apply(self, payload: bytes) -> None:
        assert self.sink is not None
        changes = self.sink.ledger.apply(decode_batch(payload))
        await self.sink.apply(W, changes, self._stream.position)


async def redis_holdings(shelf: Shelf) -> dict[BlockKey, int]:
    return {held.key: held.copies async for page in shelf.held() for held in page}
