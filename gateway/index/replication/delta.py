"""What one batch of events (or several, merged) changes in Redis: the net of it, ready to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.index.changes import Change, Cleared, Removed, Stored
from gateway.index.replication.wire import Name
from gateway.types import BlockKey, EngineHash


@dataclass(frozen=True, slots=True)
class Books:
    """What changed in the writer's books: what a successor needs beside the holdings."""

    names: Mapping[EngineHash, Name | None]
    """By the engine's own name; None where it means nothing any more."""
    aside: Mapping[bytes, bytes | None]
    """Opaque here: entries of the books' own making, None where gone."""
    state: bytes
    """Opaque here: the books' own small figures, whole."""


@dataclass(slots=True)
class Delta:
    """`position`, opaque here, is where a successor goes on in the engine's events once this is applied."""

    position: bytes
    state: bytes
    reset: bool = False
    """All from before is void: what follows is a new epoch."""
    copies: dict[BlockKey, int] = field(default_factory=dict)
    """Copies more (or less) by key."""
    parents: dict[BlockKey, BlockKey | None] = field(default_factory=dict)
    names: dict[EngineHash, Name | None] = field(default_factory=dict)
    aside: dict[bytes, bytes | None] = field(default_factory=dict)

    def __len__(self) -> int:
        """Entries that it changes."""
        return len(self.copies) + len(self.names) + len(self.aside)

    def merge(self, later: Delta) -> None:
        """`later` happened after this; now it is one change."""
        if later.reset:
            self.reset = True
            self._void()
        for key, change in later.copies.items():
            self.copies[key] = self.copies.get(key, 0) + change
        self.parents.update(later.parents)
        self.names.update(later.names)
        self.aside.update(later.aside)
        self.position, self.state = later.position, later.state

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            match change:
                case Stored(keys, parent):
                    for key in keys:
                        self.copies[key] = self.copies.get(key, 0) + 1
                        self.parents[key] = parent
                        parent = key
                case Removed(keys):
                    for key in keys:
                        self.copies[key] = self.copies.get(key, 0) - 1
                case Cleared():
                    self.reset = True
                    self.copies.clear()
                    self.parents.clear()

    def deltas(self) -> Iterable[tuple[BlockKey, BlockKey | None, int]]:
        """(key, key before it, copies more or less). What comes to nothing is told too: a block that went and
        is back was missing in between, and a mirror may have heard of that by an answer, and forgotten it."""
        return ((key, self.parents.get(key), change) for key, change in self.copies.items())

    def _void(self) -> None:
        self.copies.clear()
        self.parents.clear()
        self.names.clear()
        self.aside.clear()


def delta_of(changes: Iterable[Change], books: Books, position: bytes) -> Delta:
    """`books` after a Cleared are whole, as they are."""
    delta = Delta(position, books.state, names=dict(books.names), aside=dict(books.aside))
    delta.add(changes)
    return delta
