"""Is what this replica believes of a worker what Redis has, and do Redis' two records of it agree?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.index.replication.shelf import Shelf
from gateway.kv.parted import PartedKeys, PartedMap
from gateway.types import BlockKey, Clock, EngineHash, WorkerId

PATIENCE_S = 5.0
"""How long moments are waited for in which nothing moves, all workers together."""
PAUSE_S = 0.1
SLICE = 500
"""Entries that are compared at one go."""

_Item = TypeVar("_Item")


class AuditedIndex(Protocol):
    def count(self, worker: WorkerId) -> int:
        """Blocks that it holds."""
        ...

    def copies(self, worker: WorkerId, key: BlockKey) -> int: ...


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of blocks; all but `blocks` are 0 where everything agrees."""

    worker: str
    state: str
    """``clean``, ``differs``, ``busy`` (it never stood still) or ``empty`` (Redis has nothing of it)."""
    blocks: int = 0
    """Held, as Redis has it."""
    missing: int = 0
    """In Redis and not here: given up at the cap, refuted by feedback, or lost."""
    extra: int = 0
    """Here and not in Redis: promises that nobody will keep."""
    miscounted: int = 0
    """In both, with other numbers of copies."""
    books_differ: int = 0
    """Redis' holdings against Redis' names: what a successor would begin with."""


class Deadline:
    """Of many audits together."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def over(self) -> bool:
        return self._clock() >= self._end


async def audit(
    shelf: Shelf,
    stand: Callable[[], tuple[bytes, int] | None],
    index: AuditedIndex,
    patience: Deadline | None = None,
) -> Audit:
    """Compares while neither side moves; waits for that as long as there is `patience`, but tries once, and
    gives up a comparison as soon as something moves. `stand` gives epoch and number of the batch that the
    index stands at, None while it is on its way. Raises StoreError."""
    worker = shelf.worker
    patience = patience if patience is not None else Deadline(PATIENCE_S)
    while True:
        head = await shelf.head()
        if head is None:
            return Audit(worker, "empty")
        here = head.epoch, head.number
        if stand() == here:
            found = await _compare(shelf, index, lambda: stand() == here)  # noqa: B023 (used before the next)
            if found is not None and await shelf.head() == head and stand() == here:
                return found
        if patience.over:
            return Audit(worker, "busy")
        await asyncio.sleep(PAUSE_S)


async def _compare(shelf: Shelf, index: AuditedIndex, still: Callable[[], bool]) -> Audit | None:
    """In slices, between which requests are answered. Right where nothing moved meanwhile; None once it is no
    longer `still`."""
    worker = shelf.worker
    held = PartedKeys[int]()
    missing = miscounted = 0
    async for page in shelf.held():
        for part in _slices(page):
            for key, _, copies in part:
                if key not in held:  # a scan may give an entry twice
                    held[key] = copies
                    here = index.copies(worker, key)
                    missing += not here
                    miscounted += here not in (0, copies)
            await asyncio.sleep(0)
        if not still():
            return None
    # what Redis has by name, less what it says is held
    surplus = PartedKeys[int]()
    seen = PartedMap[EngineHash, None]()
    async for names in shelf.names():
        for some in _slices(names):
            for block, name in some:
                if block not in seen:
                    seen[block] = None
                    for key in name.keys if name.copies else ():
                        surplus[key] = (surplus.get(key) or 0) + name.copies
            await asyncio.sleep(0)
        if not still():
            return None
    books = 0
    for some_held, by_name in zip(held.parts, surplus.parts, strict=True):
        for keys in _slices(list(some_held)):
            books += sum(by_name.pop(key, 0) != some_held[key] for key in keys)
            await asyncio.sleep(0)
    extra = max(0, index.count(worker) - len(held) + missing)
    books += len(surplus)
    state = "differs" if missing or extra or miscounted or books else "clean"
    found = Audit(worker, state, len(held), missing, extra, miscounted, books)
    for counts, blocks in zip(held.parts, seen.parts, strict=True):  # a million take their time to go
        counts.clear()
        blocks.clear()
        await asyncio.sleep(0)
    return found


def _slices(items: list[_Item]) -> Iterator[list[_Item]]:
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))
