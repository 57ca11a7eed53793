"""What a follower needs from outside, and tells to outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.events.ledger import Ledger
from gateway.events.stream import Position
from gateway.index.base import IndexWriter
from gateway.index.changes import Change, apply_changes
from gateway.types import WorkerId


@dataclass(frozen=True, slots=True)
class Source:
    """Where one engine (one data-parallel rank of it) publishes."""

    events: str
    """ZMQ endpoint of its PUB socket: ``tcp://127.0.0.1:5557``."""
    replay: str | None = None
    """ZMQ endpoint of its ROUTER socket, where it has one."""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that another follower needs to go on where this one stood."""

    position: Position
    ledgers: Mapping[WorkerId, Ledger] = field(default_factory=dict)
    """They are the other's from now on."""


class Sink(Protocol):
    """Takes what happened. Awaiting it is the follower's backpressure: events wait in the socket then."""

    async def apply(self, worker: WorkerId, changes: Sequence[Change], position: Position) -> None: ...


class Observer(Protocol):
    """Hears how the following goes. Metrics live behind it."""

    def followed(self, worker: WorkerId) -> None:
        """Its events are of interest from now on."""
        ...

    def connected(self, worker: WorkerId, up: bool) -> None:
        """For a person: one that came back is told of when it has stayed (gateway.steady)."""
        ...

    def batch(self, worker: WorkerId, blocks: int, lag: float | None) -> None:
        """A batch was applied: blocks stored, and seconds since it was made (None for a replayed one)."""
        ...

    def malformed(self, worker: WorkerId, events: int) -> None: ...

    def gap(self, worker: WorkerId, batches: int) -> None:
        """So many batches were missing, and a replay is tried."""
        ...

    def replay_failed(self, worker: WorkerId) -> None:
        """The replay endpoint did not answer in time."""
        ...

    def epoch(self, worker: WorkerId, reason: str) -> None:
        """All that was known is void: ``restarted`` or ``lost``."""
        ...


class NullObserver:
    """Hears nothing."""

    def followed(self, worker: WorkerId) -> None:
        pass

    def connected(self, worker: WorkerId, up: bool) -> None:
        pass

    def batch(self, worker: WorkerId, blocks: int, lag: float | None) -> None:
        pass

    def malformed(self, worker: WorkerId, events: int) -> None:
        pass

    def gap(self, worker: WorkerId, batches: int) -> None:
        pass

    def replay_failed(self, worker: WorkerId) -> None:
        pass

    def epoch(self, worker: WorkerId, reason: str) -> None:
        pass


class IndexSink:
    """Straight into an index of this process."""

    def __init__(self, index: IndexWriter) -> None:
        self._index = index

    async def apply(self, worker: WorkerId, changes: Sequence[Change], position: Position) -> None:
        apply_changes(self._index, worker, changes)
