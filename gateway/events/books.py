"""A follower's books, kept in Redis for its successor: what is written with each batch, and how it is read
back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from gateway.events.ledger import Ledger
from gateway.events.ledger_state import BlockEntry, Journal, WholeBooks
from gateway.events.ports import Snapshot
from gateway.events.stream import Position
from gateway.events.waiting import Waiting
from gateway.index.base import IndexWriter
from gateway.index.changes import Change, apply_changes
from gateway.index.holding import UNKNOWN
from gateway.index.replication.delta import Books, Delta, delta_of
from gateway.index.replication.shelf import Grant, Shelf
from gateway.index.replication.wire import Name
from gateway.index.replication.writer import Writer
from gateway.kv.events import BlockStored
from gateway.types import BlockKey, EngineHash, WorkerId

PART = 500
"""Entries of one part, where the books are written whole: a few ms here, in Redis and in each mirror."""
SLICE = 500
"""Entries of a page that are taken in at one go."""


class _State(msgspec.Struct, array_like=True):
    """The books' small figures. New fields go to the end, with a default."""

    model: str
    block_size: int
    stride: int
    group: int | None


class ParentIndex(IndexWriter, Protocol):
    """The index that a writer applies its changes to; it also knows which block comes before which."""

    def copies(self, worker: WorkerId, key: BlockKey) -> int: ...

    def parent(self, worker: WorkerId, key: BlockKey) -> BlockKey | None: ...


class BookSink:
    """A `Sink`: changes go into this process's index at once, and to Redis while there is a writer."""

    def __init__(self, worker: WorkerId, index: ParentIndex, model: str, block_size: int) -> None:
        self.writer: Writer | None = None
        self._worker = worker
        self._index = index
        self._model = model
        self._block_size = block_size
        self.ledger = self.make_ledger()
        """Those of the follower."""
        self._position = Position(0, 0)

    def make_ledger(self) -> Ledger:
        """For the follower: the books that this sink copies from."""
        self.ledger = Ledger(self._model, block_size=self._block_size, journal=True)
        return self.ledger

    def restored(self, position: Position) -> None:
        self._position = position

    async def apply(self, worker: WorkerId, changes: Sequence[Change], position: Position) -> None:
        apply_changes(self._index, worker, changes)
        self._position = position
        books = _books(self.ledger, self.ledger.take_journal())
        if self.writer is not None:
            self.writer.put(delta_of(changes, books, _pack_position(position)))

    def whole(self) -> Iterator[Delta]:
        """The books of now, in parts, each made when it is asked for; the first voids what was there."""
        return self._parts(self.ledger.whole(), _pack_position(self._position), _pack_state(self.ledger))

    def _parts(self, books: WholeBooks, position: bytes, state: bytes) -> Iterator[Delta]:
        blocks, tiers, waiting = books.blocks(), books.tiers(), iter(books.waiting.items())
        first = True
        while True:
            part = Delta(position, state, reset=first)
            for block, entry in islice(blocks, PART):
                part.names[block] = Name(entry.copies, entry.keys)
                if entry.copies:
                    self._count(part, entry)
            part.aside.update(_tier(place, copies) for place, copies in islice(tiers, PART - len(part.names)))
            left = PART - len(part.names) - len(part.aside)
            part.aside.update(_waiting(number, one) for number, one in islice(waiting, left))
            if not len(part) and not first:
                return
            yield part
            first = False

    def _count(self, part: Delta, entry: BlockEntry) -> None:
        """Several of the engine's blocks may have a key in common: its copies come with each."""
        for key in entry.keys:
            part.copies[key] = part.copies.get(key, 0) + entry.copies
            # what the index gave up or refuted, and the engine holds, it knows no place of
            held = self._index.copies(self._worker, key)
            part.parents[key] = self._index.parent(self._worker, key) if held else UNKNOWN


def _books(ledger: Ledger, journal: Journal) -> Books:
    names = {
        block: None if entry is None else Name(entry.copies, entry.keys)
        for block, entry in journal.blocks.items()
    }
    aside = dict(_waiting(number, waiting) for number, waiting in journal.waiting.items())
    aside.update(_tier(place, copies) for place, copies in journal.tiers.items())
    return Books(names, aside, _pack_state(ledger))


def _waiting(number: int, waiting: Waiting | None) -> tuple[bytes, bytes | None]:
    """Its entry aside."""
    name = b"w" + number.to_bytes(8, "big")
    if waiting is None:
        return name, None
    return name, msgspec.msgpack.encode((waiting.event, sorted(waiting.gone)))


def _tier(place: tuple[str, EngineHash], copies: int) -> tuple[bytes, bytes | None]:
    """Its entry aside."""
    return b"t" + msgspec.msgpack.encode(place), msgspec.msgpack.encode(copies) if copies else None


async def load_books(shelf: Shelf, grant: Grant, sink: BookSink) -> Snapshot | None:
    """What the writer before left, now the sink's; None where it is not all there, or is of another model or
    unit.

    Raises StoreError. Nobody writes meanwhile: the caller has the lease.
    """
    if not grant.complete:
        return None
    try:
        state = msgspec.msgpack.decode(grant.state, type=_State)
        position = Position(*msgspec.msgpack.decode(grant.position, type=tuple[int, int]))
    except msgspec.DecodeError:
        return None
    ledger = sink.make_ledger()
    if (state.model, state.block_size) != (ledger.model, ledger.block_size):
        return None
    ledger.resume(state.stride, state.group)
    await _recall(shelf, ledger)
    head = await shelf.head()
    if head is None or (head.epoch, head.number) != (grant.epoch, grant.number):
        sink.make_ledger()
        return None  # emptied, or voided, while it was read
    sink.restored(position)
    return Snapshot(position, {shelf.worker: ledger})


async def _recall(shelf: Shelf, ledger: Ledger) -> None:
    """Page by page; in between, requests are answered."""
    async for page in shelf.names():
        for start in range(0, len(page), SLICE):
            for block, name in page[start : start + SLICE]:
                ledger.recall(block, name.keys, name.copies)
            await asyncio.sleep(0)
    waiting: dict[int, Waiting] = {}
    async for entries in shelf.aside():
        for field, value in entries.items():
            if field[:1] == b"w":
                event, gone = msgspec.msgpack.decode(value, type=tuple[BlockStored, list[int]])
                waiting[int.from_bytes(field[1:], "big")] = Waiting(event, gone)
            else:
                medium, block = msgspec.msgpack.decode(field[1:], type=tuple[str, int | bytes])
                ledger.recall_tier(medium, block, msgspec.msgpack.decode(value, type=int))
        await asyncio.sleep(0)
    for place, number in enumerate(sorted(waiting)):
        ledger.recall_waiting(waiting[number], number)
        if place % SLICE == SLICE - 1:
            await asyncio.sleep(0)


def _pack_state(ledger: Ledger) -> bytes:
    return msgspec.msgpack.encode(_State(ledger.model, ledger.block_size, ledger.stride, ledger.group))


def _pack_position(position: Position) -> bytes:
    return msgspec.msgpack.encode((position.next_seq, position.digest))
