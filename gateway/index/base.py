"""The contract of a prefix index. One behaviour suite (tests/contract) runs against every implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.index.watch import Watch
from gateway.types import BlockKey, WorkerId


class IndexReader(Protocol):
    """The read path: what a routing decision needs."""

    def match(self, keys: Sequence[BlockKey], now: float) -> Mapping[WorkerId, int]:
        """How many leading `keys` each worker holds or was just promised. Workers with none are left out.

        A hole ends a worker's match. Cost, however many workers there are: one look-up a key; where no holder
        has a hole, of a sixteenth of the keys, and of those around the ends of matches.
        """
        ...

    def held_depth(self, worker: WorkerId, keys: Sequence[BlockKey]) -> int:
        """How many leading `keys` this worker holds by its own word, placements left out.

        Ask when a promise is made, and `refute` only that much of it: an engine that delivers less than a
        mere placement promised has contradicted nobody.
        """
        ...

    def holds(self, worker: WorkerId, key: BlockKey) -> bool:
        """Whether this worker holds `key` by its own word."""
        ...

    def watch(self, worker: WorkerId, key: BlockKey) -> Watch | None:
        """Tells from now on, until `unwatch`, whether the worker says that `key` goes, which it holds. None
        of a worker that says nothing."""
        ...

    def unwatch(self, worker: WorkerId, watch: Watch) -> None:
        """Once for each `watch`."""
        ...


class IndexWriter(Protocol):
    """The write path: what KV events and routing decisions do to it. Unknown workers are ignored, so that an
    event in flight can't bring a removed worker back."""

    def add_worker(self, worker: WorkerId, *, stride: int = 1, capacity: int | None = None) -> None:
        """Make it known; a worker that is known already is set anew.

        `stride` is the size of its engine's own blocks, in blocks of ours: what it holds counts in whole
        ones only. `capacity`, in blocks of ours, is given for an engine that sends no events: its placements
        stand until that many newer ones push them out, instead of expiring.
        """
        ...

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget it and all it holds, in O(its own blocks)."""
        ...

    def store(self, worker: WorkerId, keys: Sequence[BlockKey], parent: BlockKey | None = None) -> None:
        """One more copy of each key. `keys` are consecutive blocks, `parent` the key before the first, None
        where the first one begins a prompt, `holding.UNKNOWN` where nobody knows."""
        ...

    def remove(self, worker: WorkerId, keys: Sequence[BlockKey]) -> None:
        """One copy of each key less; held no more when the last copy goes."""
        ...

    def replaced(self, worker: WorkerId, key: BlockKey) -> None:
        """The worker's copies of `key` went, and as many came, between two words of it."""
        ...

    def clear(self, worker: WorkerId) -> None:
        """A new epoch: all that the worker held, promised blocks too, is void."""
        ...

    def place(self, worker: WorkerId, keys: Sequence[BlockKey], now: float) -> None:
        """A routing decision: `worker` will soon hold `keys`. Short-lived; dropped when the event arrives."""
        ...

    def retract(self, worker: WorkerId, keys: Sequence[BlockKey], placed_at: float, now: float) -> None:
        """The placement of `keys` made at `placed_at` leads to nothing: the engine turned the request away.
        What other decisions promised too, and what the engine itself told of, stays."""
        ...

    def epoch(self, worker: WorkerId) -> int:
        """A number that is another one once all that the worker held is void; 0 where it is not known."""
        ...

    def refute(self, worker: WorkerId, keys: Sequence[BlockKey], delivered: int) -> None:
        """Feedback: of `keys`, which were promised, the engine really had `delivered` leading ones. What lies
        behind that point is forgotten for this worker."""
        ...
