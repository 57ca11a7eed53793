"""One worker's holdings, brought from Redis into this process's index, and kept up to date.

The set is loaded page by page while its writer goes on writing; the stream, read from where it stood before,
then says of every key that changed how many copies there are *now*. So what a page showed too early or too
late is put right, and a batch that comes twice changes nothing. Batches are numbered: one that is missing
(the stream is bounded; a failover may lose some) is noticed, and the worker is loaded anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Literal, Protocol, TypeAlias, get_args

from gateway.errors import StoreError
from gateway.index.replication.loads import Loads
from gateway.index.replication.shelf import UNREADABLE, Entry, Head, Shelf
from gateway.index.replication.unordered import Unordered
from gateway.index.replication.wire import Held
from gateway.types import BlockKey, WorkerId

log = logging.getLogger(__name__)

READ_COUNT = 64
BLOCK_S = 1.0
"""A stream that is silent so long is asked whether it is still the same."""
SLICE = 500
"""Blocks of a load, or of batches, that are taken in at one go."""


Load: TypeAlias = Literal["start", "reload", "gap", "drift"]
LOADS: tuple[Load, ...] = get_args(Load)
"""Why a worker's blocks are loaded whole."""


class MirroredIndex(Protocol):
    """What a mirror does to an index."""

    def store(self, worker: WorkerId, keys: Sequence[BlockKey], parent: BlockKey | None = None) -> None: ...

    def load(
        self,
        worker: WorkerId,
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        copies: Mapping[int, int],
    ) -> None: ...

    def remove(self, worker: WorkerId, keys: Sequence[BlockKey]) -> None: ...

    def replaced(self, worker: WorkerId, key: BlockKey) -> None: ...

    def clear(self, worker: WorkerId) -> None: ...

    def copies(self, worker: WorkerId, key: BlockKey) -> int: ...


class MirrorState(Enum):
    LOADING = "loading"
    FOLLOWING = "following"
    REFILLING = "refilling"
    """Its writer writes anew what it knows; some of that is here."""
    EMPTY = "empty"
    """Redis knows nothing of this worker (any more): what is known here stands until somebody writes."""
    STALE = "stale"
    """Redis can't be reached: what is known here stands, and grows old."""


class MirrorObserver(Protocol):
    """Hears how the mirroring goes. Metrics live behind it."""

    def loaded(self, reason: str, blocks: int, seconds: float) -> None: ...


class NullMirrorObserver:
    def loaded(self, reason: str, blocks: int, seconds: float) -> None:
        pass


class Mirror:
    """`run` it in a task; cancel the task to end it. `settle` brings it up to date once and for all, where
    nobody writes."""

    def __init__(
        self,
        shelf: Shelf,
        index: MirroredIndex,
        observer: MirrorObserver | None = None,
        *,
        block_s: float = BLOCK_S,
        loads: Loads | None = None,
    ) -> None:
        """`loads` are those of its process."""
        self.state = MirrorState.LOADING
        self.loads = 0
        """How often the whole set was loaded."""
        self.knows = False
        """It has known at least once all that was written: what it knows outlasts a Redis that is away."""
        self._shelf = shelf
        self._index = index
        self._observer = observer if observer is not None else NullMirrorObserver()
        self._block_s = block_s
        self._turns = loads if loads is not None else Loads()
        self._entry = b"0-0"
        self._epoch = b""
        self._number = -1
        self._token = b""
        self._complete_at = -1
        """Batch number from which on the load is no longer fuzzy."""
        self._whole = True
        """With the last batch all was written that its writer knew."""
        self._doubts = 0

    def __repr__(self) -> str:
        return f"<Mirror of {self._shelf.worker}: {self.state.value}, {self._number} in {self._epoch!r}>"

    @property
    def head(self) -> tuple[bytes, int]:
        """Epoch and number of the batch applied last."""
        return self._epoch, self._number

    def distrust(self) -> None:
        """The index was changed by another hand: load anew."""
        self._epoch, self._number, self.state = b"", -1, MirrorState.LOADING

    def adopt(self, head: Head) -> None:
        """The index is what was written up to `head`, by another hand: go on from there."""
        self._stand_at(head)
        self._complete_at = head.number
        self._note_following()

    async def run(self) -> None:
        while True:
            try:
                await self.step(self._block_s)
            except StoreError as error:
                if error.kind == UNREADABLE:
                    self.distrust()  # what it says is not known; the load goes on behind it
                if self.state is not MirrorState.LOADING:
                    self.state = MirrorState.STALE
                await self._shelf.again()

    async def settle(self) -> None:
        """Until all that is written is here. Only the holder of the lease can ask that. Raises StoreError."""
        while (head := await self._shelf.head()) is not None and not self._stands_at(head):
            await self.step(0.001)

    async def step(self, block_s: float) -> None:
        """One read; a load where it is needed. Raises StoreError."""
        if not self._epoch:
            await self._load("start" if not self.loads else "reload")
            if not self._epoch:
                await asyncio.sleep(block_s)
                return
        entries = await self._shelf.read(self._entry, READ_COUNT, block_s)
        records = 0
        for entry in entries:
            if not self._take(entry):
                await self._load("gap")
                return
            records += len(entry)
            if records >= SLICE:
                records = 0
                await asyncio.sleep(0)  # requests go first
        if entries:
            self._doubts = 0
            self._note_following()
        else:
            await self._look_round()

    def _take(self, entry: Entry) -> bool:
        """False where batches are missing before it."""
        self._entry = entry.id
        same = (entry.epoch, entry.token) == (self._epoch, self._token)
        if same and entry.number <= self._number:
            return True
        if entry.reset:
            self._index.clear(self._shelf.worker)
        elif entry.epoch != self._epoch or entry.number != self._number + 1:
            return False
        set_copies(self._index, self._shelf.worker, entry.records())
        self._epoch, self._number, self._token = entry.epoch, entry.number, entry.token
        self._whole = entry.complete
        if not entry.complete:
            self.state = MirrorState.REFILLING  # also for who looks before the rest is read
        return True

    async def _load(self, reason: Load) -> None:
        """From Redis, page by page; what the index held stands until all of it has been read."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            began, worker = loop.time(), self._shelf.worker
            head = await self._shelf.head()
            if head is None:
                self._epoch, self.state = b"", MirrorState.EMPTY
                return
            # where it does not come to its end, it begins again
            self._epoch, self.state = b"", MirrorState.LOADING
            found = Unordered()
            async for page in self._shelf.held_records():
                found.add(page)
            blocks = len(found)
            await self._take_in(found)
            del found
            after = await self._shelf.head()
        self._stand_at(head)
        if after is None or after.epoch != head.epoch:
            # pages of two epochs; the stream has the newer one from its beginning
            self._complete_at, self._whole = head.number, False
        else:
            self._complete_at = after.number
        self.loads += 1
        seconds = loop.time() - began
        log.info(
            "a worker's blocks were loaded from Redis",
            extra={"worker": worker, "reason": reason, "blocks": blocks, "seconds": round(seconds, 3)},
        )
        self._observer.loaded(reason, blocks, seconds)
        self._note_following()

    async def _take_in(self, found: Unordered) -> None:
        """In place of what was held."""
        worker, index, taken = self._shelf.worker, self._index, 0
        index.clear(worker)
        for run, before in found.runs():
            index.load(worker, run, before, found.copies)
            taken += len(run)
            if taken >= SLICE:
                taken = 0
                await asyncio.sleep(0)  # requests go first

    def _stands_at(self, head: Head) -> bool:
        # the same number by another hand is another batch: a failover lost the one that is known here
        return (head.epoch, head.number, head.token) == (self._epoch, self._number, self._token)

    def _stand_at(self, head: Head) -> None:
        self._entry, self._epoch, self._number, self._token = head.entry, head.epoch, head.number, head.token
        self._whole = head.complete

    def _note_following(self) -> None:
        if not self._whole:
            self.state = MirrorState.REFILLING
        elif self._number >= self._complete_at:
            self.state, self.knows = MirrorState.FOLLOWING, True

    async def _look_round(self) -> None:
        """Nothing came: because nothing happened, or because this stream is not the one it was?"""
        head = await self._shelf.head()
        if head is None:
            # emptied; what its writer writes anew is read from the beginning
            self.state, self._entry = MirrorState.EMPTY, b"0-0"
        elif self._stands_at(head):
            self._doubts = 0
            self.state = MirrorState.FOLLOWING if head.complete else MirrorState.REFILLING
        else:
            self._doubts += 1
            if self._doubts > 1:  # once may be a batch that came between the two questions
                self._doubts = 0
                await self._load("drift")


def set_copies(index: MirroredIndex, worker: WorkerId, records: Iterable[Held]) -> None:
    """Makes the index hold so many copies of each key. Runs of new blocks are stored as one."""
    run: list[BlockKey] = []
    before: BlockKey | None = None
    for key, parent, copies in records:
        if run and parent == run[-1] and copies == 1 and not index.copies(worker, key):
            run.append(key)
            continue
        if run:
            index.store(worker, run, before)
            run = []
        have = index.copies(worker, key)
        if have == copies:
            index.replaced(worker, key)
        if not have and copies == 1:
            run, before = [key], parent
        for _ in range(have - copies):
            index.remove(worker, (key,))
        for _ in range(copies - have if have or copies > 1 else 0):
            index.store(worker, (key,), parent)
    if run:
        index.store(worker, run, before)
