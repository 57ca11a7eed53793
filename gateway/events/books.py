"""A follower's books, kept in Redis for its successor: what is written with each batch, and how it is read
back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from gateway.events.ledger import Ledger
from gateway.events.ledger_state import FORMAT, Journal, LedgerState, dump_state, pack_keys
from gateway.events.ports import Snapshot
from gateway.events.stream import Position
from gateway.index.base import IndexWriter
from gateway.index.changes import Change, apply_changes
from gateway.index.replication.delta import Books, Delta, delta_of
from gateway.index.replication.shelf import Grant, Shelf
from gateway.index.replication.wire import Name
from gateway.index.replication.writer import Writer
from gateway.kv.events import BlockStored
from gateway.types import BlockKey, EngineHash, WorkerId

PART = 4000
"""Entries of one part, where the books are written whole."""


class _State(msgspec.Struct, array_like=True):
    """The books' small figures. New fields go to the end, with a default."""

    model: str
    block_size: int
    stride: int
    group: int | None


class ParentIndex(IndexWriter, Protocol):
    """The index that a writer applies its changes to; it also knows which block comes before which."""

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
        """The books of now, in parts; the first voids what was there."""
        self.ledger.retell()
        books = _books(self.ledger, self.ledger.take_journal())
        position = _pack_position(self._position)
        copies: dict[BlockKey, int] = {}
        for key, count in self.ledger.holdings():
            copies[key] = copies.get(key, 0) + count
        names, aside, held = iter(books.names.items()), iter(books.aside.items()), iter(copies.items())
        first = True
        while True:
            part = Delta(position, books.state, reset=first)
            part.copies.update(islice(held, PART))
            part.parents.update((key, self._index.parent(self._worker, key)) for key in part.copies)
            part.names.update(islice(names, PART))
            part.aside.update(islice(aside, PART))
            if not len(part) and not first:
                return
            yield part
            first = False


def _books(ledger: Ledger, journal: Journal) -> Books:
    names = {
        block: None if entry is None else Name(entry.copies, entry.keys)
        for block, entry in journal.blocks.items()
    }
    aside: dict[bytes, bytes | None] = {}
    for number, waiting in journal.waiting.items():
        aside[b"w" + number.to_bytes(8, "big")] = (
            None if waiting is None else msgspec.msgpack.encode((waiting.event, sorted(waiting.gone)))
        )
    for place, copies in journal.tiers.items():
        aside[b"t" + msgspec.msgpack.encode(place)] = msgspec.msgpack.encode(copies) if copies else None
    state = _State(ledger.model, ledger.block_size, ledger.stride, ledger.group)
    return Books(names, aside, msgspec.msgpack.encode(state))


async def load_books(
    shelf: Shelf, grant: Grant, model: str, block_size: int, on_position: Callable[[Position], None]
) -> Snapshot | None:
    """What the writer before left; None where it is not all there, or is of another model or unit.

    Raises StoreError. Nobody writes meanwhile: the caller has the lease.
    """
    if not grant.complete:
        return None
    try:
        state = msgspec.msgpack.decode(grant.state, type=_State)
        position = Position(*msgspec.msgpack.decode(grant.position, type=tuple[int, int]))
    except msgspec.DecodeError:
        return None
    if (state.model, state.block_size) != (model, block_size):
        return None
    ledger = await _load_ledger(shelf, state)
    on_position(position)
    return Snapshot(position, {shelf.worker: dump_state(ledger)})


async def _load_ledger(shelf: Shelf, state: _State) -> LedgerState:
    names: dict[EngineHash, Name] = {}
    async for page in shelf.names():
        names.update(page)
    waiting: dict[int, tuple[BlockStored, list[int]]] = {}
    tiers: dict[str, list[tuple[EngineHash, int]]] = {}
    async for entries in shelf.aside():
        for field, value in entries.items():
            if field[:1] == b"w":
                number = int.from_bytes(field[1:], "big")
                waiting[number] = msgspec.msgpack.decode(value, type=tuple[BlockStored, list[int]])
            else:
                medium, block = msgspec.msgpack.decode(field[1:], type=tuple[str, int | bytes])
                tiers.setdefault(medium, []).append((block, msgspec.msgpack.decode(value, type=int)))
    numbers = sorted(waiting)
    return LedgerState(
        format=FORMAT,
        model=state.model,
        block_size=state.block_size,
        stride=state.stride,
        group=state.group,
        blocks=list(names),
        keys=pack_keys(key for name in names.values() for key in name.keys),
        copies=[(block, name.copies) for block, name in names.items() if name.copies != 1],
        waiting=[waiting[number] for number in numbers],
        tiers=tiers,
        numbers=numbers,
    )


def _pack_position(position: Position) -> bytes:
    return msgspec.msgpack.encode((position.next_seq, position.digest))
