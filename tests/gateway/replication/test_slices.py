"""Thousands of blocks at once, and requests that go on meanwhile: everything is done in slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.events.books import PART, SLICE, BookSink, load_books
from gateway.events.stream import Position
from gateway.index.prefix import PrefixIndex
from gateway.index.replication.mirror import Mirror
from gateway.index.replication.shelf import Shelf, load_scripts
from gateway.index.replication.verify import Deadline, audit
from gateway.index.replication.wire import Held
from gateway.index.replication.writer import Terms, Writer
from gateway.kv.events import BlockStored, EventBatch
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import WorkerId
from tests.servers import standalone

pytestmark = pytest.mark.anyio

W = WorkerId("http://engine:8000")
BLOCKS = 5_000
PROMPT = 10
"""Blocks."""


class Turns:
    """Counts the turns that a request would have got."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


@asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    counted = Turns()
    task = asyncio.create_task(counted.run())
    yield counted
    task.cancel()


class Refills:
    def refilled(self, reason: str) -> None:
        pass


def index_of() -> PrefixIndex:
    index = PrefixIndex()
    index.add_worker(W)
    return index


async def believe(sink: BookSink) -> None:
    """The sink's books get BLOCKS blocks, one of them twice."""
    ledger = sink.ledger
    for first in range(0, BLOCKS, PROMPT):
        names = tuple(range(first, first + PROMPT))
        tokens = tuple(range(first * 16, (first + PROMPT) * 16))
        batch = EventBatch(0.0, (BlockStored(names, None, tokens, 16),))
        await sink.apply(W, ledger.apply(batch), Position(first + 1, 7))
    again = EventBatch(0.0, (BlockStored((0,), None, tuple(range(16)), 16),))
    await sink.apply(W, ledger.apply(again), Position(BLOCKS, 7))


async def test_books_are_written_loaded_mirrored_and_compared_in_slices(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url), timeout=10)
        shelf = Shelf(store, W, load_scripts())
        first, second, third = index_of(), index_of(), index_of()
        sink = BookSink(W, first, "m", 16)
        await believe(sink)
        grant = await shelf.acquire("one", 60)
        assert grant is not None
        epochs = iter((b"e1", b"e2"))
        writer = Writer(
            shelf, "one", grant, whole=sink.whole, known=lambda: len(sink.ledger),
            new_epoch=lambda: next(epochs), observer=Refills(), clock=time.monotonic, terms=Terms(),
            refill="first contact",
        )  # fmt: skip
        await writer.flush()
        assert writer.head == (b"e1", BLOCKS // PART), "so many parts"

        mirror = Mirror(shelf, second)
        async with turns() as loading:
            await mirror.settle()
        assert loading.count >= BLOCKS // 500
        copies = {key: first.copies(W, key) for key in first.held(W)}
        assert len(copies) == BLOCKS
        assert sorted(copies.values())[-2:] == [1, 2]
        assert {key: second.copies(W, key) for key in second.held(W)} == copies
        second.check_integrity()

        # a mirror that follows reads all parts of a refill, and lets others in between
        writer._give_up_queue("lost")
        await writer.flush()
        async with turns() as following:
            await mirror.step(0.01)
        assert following.count >= BLOCKS // PART
        assert mirror.head == writer.head == (b"e2", 2 * BLOCKS // PART)
        assert {key: second.copies(W, key) for key in second.held(W)} == copies

        async with turns() as auditing:
            found = await audit(shelf, lambda: writer.head, second)
        assert (found.state, found.blocks) == ("clean", BLOCKS)
        assert auditing.count >= 3 * BLOCKS // 500

        heir = BookSink(W, third, "m", 16)
        async with turns() as restoring:
            snapshot = await load_books(shelf, grant, heir)
        assert snapshot is None, "its grant says that nothing was complete then"
        await writer.release()
        grant = await shelf.acquire("two", 60)
        assert grant is not None
        async with turns() as restoring:
            snapshot = await load_books(shelf, grant, heir)
        assert restoring.count >= BLOCKS // SLICE
        assert snapshot is not None
        assert snapshot.position == Position(BLOCKS, 7)
        assert sorted(snapshot.ledgers[W].holdings()) == sorted(sink.ledger.holdings())
        await store.close()


async def written(store: Store) -> tuple[Shelf, PrefixIndex, BookSink, Writer]:
    """Redis, an index and books that all know the same."""
    shelf, index = Shelf(store, W, load_scripts()), index_of()
    sink = BookSink(W, index, "m", 16)
    await believe(sink)
    grant = await shelf.acquire("one", 60)
    assert grant is not None
    writer = Writer(
        shelf, "one", grant, whole=sink.whole, known=lambda: len(sink.ledger), new_epoch=lambda: b"e1",
        observer=Refills(), clock=time.monotonic, terms=Terms(), refill="first contact",
    )  # fmt: skip
    await writer.flush()
    return shelf, index, sink, writer


async def test_what_differs_is_counted(tmp_path: Path) -> None:
    """Each kind of difference between Redis' holdings, Redis' names and the index, by hand."""
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url), timeout=10)
        shelf, index, sink, writer = await written(store)
        (_, once), (_, other), *_ = sink.ledger.whole().blocks()
        key, neighbour = once.keys[0], other.keys[0]
        index.remove(W, [key])  # one copy of two: miscounted
        index.refute(W, [neighbour], 0)  # held there, not here: missing
        index.store(W, [type(key)(1), type(key)(2)])  # extra
        # a name without its holding
        await store.command("HDEL", store.keys.held(W), neighbour.to_bytes(8, "little"))
        found = await audit(shelf, lambda: writer.head, index)
        assert (found.state, found.blocks) == ("differs", BLOCKS - 1)
        assert (found.missing, found.extra, found.miscounted, found.books_differ) == (0, 2, 1, 1)
        await store.close()


async def test_a_worker_that_moves_is_busy_and_compared_no_further(tmp_path: Path) -> None:
    """Not one page more than it stood still for; and who asks for several waits once."""
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url), timeout=10)
        shelf, index, _, writer = await written(store)
        clock = iter([0.0, 4.9, 5.0, 5.1])  # made; then asked after each try
        patience = Deadline(5.0, clock=lambda: next(clock))
        stands = iter([writer.head, None, writer.head, None, None])  # before, and behind the first page
        pages, held = [], shelf.held

        async def counted() -> AsyncGenerator[list[Held]]:
            async for page in held():
                pages.append(len(page))
                yield page

        shelf.held = counted  # type: ignore[method-assign]
        assert (await audit(shelf, lambda: next(stands), index, patience)).state == "busy"
        assert len(pages) == 2, "two tries, a page each"
        assert (await audit(shelf, lambda: next(stands), index, patience)).state == "busy"
        assert len(pages) == 2
        assert next(clock, None) is None, "one try, with no patience left"
        await store.close()
