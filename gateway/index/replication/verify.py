"""Is what this replica believes of a worker what Redis has, and do Redis' two records of it agree?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.index.replication.shelf import Shelf
from gateway.types import BlockKey, WorkerId

TRIES = 20
PAUSE_S = 0.1


class AuditedIndex(Protocol):
    def held(self, worker: WorkerId) -> Iterator[BlockKey]: ...

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
            held = {block.key: block.copies async for page in shelf.held() for block in page}
            named: dict[BlockKey, int] = {}
            async for names in shelf.names():
                for _, name in names:
                    for key in name.keys if name.copies else ():
                        named[key] = named.get(key, 0) + name.copies
            here = {key: index.copies(worker, key) for key in index.held(worker)}
            after = await shelf.head()
            if after == head and stand() == (head.epoch, head.number):
                return _compare(worker, held, named, here)
        await asyncio.sleep(PAUSE_S)
    return Audit(worker, "busy")


def _compare(
    worker: WorkerId, held: dict[BlockKey, int], named: dict[BlockKey, int], here: dict[BlockKey, int]
) -> Audit:
    missing = len(held.keys() - here.keys())
    extra = len(here.keys() - held.keys())
    miscounted = sum(held[key] != here[key] for key in held.keys() & here.keys())
    books = sum(held.get(key) != named.get(key) for key in held.keys() | named.keys())
    clean = not (missing or extra or miscounted or books)
    return Audit(worker, "clean" if clean else "differs", len(held), missing, extra, miscounted, books)
