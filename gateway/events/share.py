"""What the shared followers of a process have in common, and what each tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gateway.events.balance import Balance
from gateway.events.books import ParentIndex
from gateway.events.share_observers import ShareObserver
from gateway.index.replication.loads import Loads
from gateway.index.replication.mirror import MirroredIndex
from gateway.index.replication.shelf import Scripts
from gateway.index.replication.writer import Terms
from gateway.store.connection import Store
from gateway.types import BlockKey, Clock, WorkerId


class SharedIndex(ParentIndex, MirroredIndex, Protocol):
    """The index of this process: its own followers and its mirrors write it."""

    def count(self, worker: WorkerId) -> int:
        """Blocks that it holds."""
        ...

    def store(self, worker: WorkerId, keys: Sequence[BlockKey], parent: BlockKey | None = None) -> None: ...


@dataclass(slots=True)
class Share:
    """What all shared followers of a process have in common. `owner` names this life of the process."""

    store: Store
    scripts: Scripts
    owner: str
    index: SharedIndex
    observer: ShareObserver
    clock: Clock
    random: Callable[[], float]
    new_epoch: Callable[[], bytes]
    """A name that no epoch had before."""
    balance: Balance
    terms: Terms = field(default_factory=Terms)
    loads: Loads = field(default_factory=Loads)


class Role(Enum):
    MIRROR = "mirror"
    WRITER = "writer"
    ALONE = "alone"
    """It never knew what others know, or could not hand over what it knows, and Redis does not answer: it
    follows for itself."""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """How one worker's knowledge is shared, for a person or a scraper."""

    worker: WorkerId
    role: str
    mirror: str
    """The mirror's state; empty where this replica follows the engine itself."""
    epoch: str
    number: int
    """Of the batch applied (mirror) or written (writer) last."""
    pending: int
    """Entries that Redis does not have yet."""
    loads: int
    """How often the whole set was loaded."""
    leased: bool
    """It is the writer, and its lease has not run out by its own clock; once it has, another may write."""
