"""Is what this replica believes of a worker what Redis has, and do Redis' two records of it agree?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.index.replication.shelf import Shelf
from gateway.types import BlockKey, EngineHash, WorkerId

TRIES = 20
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


async def audit(shelf: Shelf, stand: Callable[[], tuple[bytes, int] | None], index: AuditedIndex) -> Audit:
    """Compares while neither side moves; tries a while for that. `stand` gives epoch and number of the batch
    that the index stands at, None while it is on its way. Raises StoreError."""
    worker = shelf.worker
    for _ in range(TRIES):
        head = await shelf.head()
        if head is None:
            return Audit(worker, "empty")
        if stand() == (head.epoch, head.number):
            found = await _compare(shelf, index)
            after = await shelf.head()
            if after == head and stand() == (head.epoch, head.number):
                return found
        await asyncio.sleep(PAUSE_S)
    return Audit(worker, "busy")


async def _compare(shelf: Shelf, index: AuditedIndex) -> Audit:
    """In slices, between which requests are answered. Right where nothing moved meanwhile."""
    worker = shelf.worker
    held: dict[BlockKey, int] = {}
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
    # what Redis has by name, less what it says is held
    surplus: dict[BlockKey, int] = {}
    seen: set[EngineHash] = set()
    async for names in shelf.names():
        for some in _slices(names):
            for block, name in some:
                if block not in seen:
                    seen.add(block)
                    for key in name.keys if name.copies else ():
                        surplus[key] = surplus.get(key, 0) + name.copies
            await asyncio.sleep(0)
    books = 0
    for keys in _slices(list(held)):
        books += sum(surplus.pop(key, 0) != held[key] for key in keys)
        await asyncio.sleep(0)
    extra = max(0, index.count(worker) - len(held) + missing)
    clean = not (missing or extra or miscounted or books or surplus)
    return Audit(
        worker, "clean" if clean else "differs", len(held), missing, extra, miscounted, books + len(surplus)
    )


def _slices(items: list[_Item]) -> Iterator[list[_Item]]:
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))
