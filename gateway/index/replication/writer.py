"""The one writer of a worker: what its follower learns goes to Redis, in order, whole batches, fenced.

The follower hands over and never waits: while Redis is away, changes queue here, and are merged. What would
outgrow the queue is dropped, and the books are written anew, whole, once Redis is back. The same happens when
Redis turns out not to have what was written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from gateway.errors import StoreError
from gateway.index.replication.delta import Delta
from gateway.index.replication.shelf import Asking, Grant, Outcome, Own, Shelf
from gateway.types import Clock

log = logging.getLogger(__name__)

BATCH = 1000
"""Entries up to which queued batches are sent as one."""
MAX_QUEUED = 200_000
"""Entries that may wait for Redis; beyond, the books are written anew."""


Refill: TypeAlias = Literal["first contact", "no books", "lost", "overflow"]
REFILLS: tuple[Refill, ...] = get_args(Refill)
"""Why a worker's books are written whole."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a writer's lease is held, in seconds."""

    lease_s: float = 5.0
    """After the last renewal another may take over."""
    renew_s: float = 1.5
    keep_s: float = 86_400.0
    """What nobody renews is forgotten after so long."""


class WriterObserver(Protocol):
    """Hears how the writing goes. Metrics live behind it."""

    def refilled(self, reason: str) -> None:
        """The books were written anew, whole."""
        ...


class Duty(Protocol):
    """What a process makes of the workers that it writes."""

    def told(self) -> int:
        """How many they are, for others to hear; 0: leave this one alone."""
        ...

    def yields(self, asking: int) -> bool:
        """Whether to hand this worker over to one who asks with that figure."""
        ...


class NoDuty:
    """Keeps what it writes."""

    def told(self) -> int:
        return 0

    def yields(self, asking: int) -> bool:
        return False


class Fenced(Exception):
    """Another writes this worker now: what is known here is void."""


class Voided(Fenced):
    """Nobody else writes: what is known was to be forgotten, by everybody."""


class Yields(Exception):
    """Another, named here, is to write this worker from now on."""

    def __init__(self, heir: str) -> None:
        super().__init__(heir)
        self.heir = heir


class Writer:
    """`put` what the follower learned; `run` sends it until another writer takes over.

    `whole` gives the books as they are now, in deltas of which the first is a reset, each made when it is
    asked for, and `known` how many blocks they name. `new_epoch` gives a name that no epoch had before.
    """

    def __init__(
        self,
        shelf: Shelf,
        owner: str,
        grant: Grant,
        *,
        whole: Callable[[], Iterator[Delta]],
        known: Callable[[], int],
        new_epoch: Callable[[], bytes],
        observer: WriterObserver,
        clock: Clock,
        terms: Terms,
        refill: Refill | None = None,
        duty: Duty | None = None,
    ) -> None:
        """`refill` says why the books are to be written whole first; None where Redis has them."""
        self._duty = duty if duty is not None else NoDuty()
        self._shelf = shelf
        self._owner = owner
        self._whole = whole
        self._known = known
        self._new_epoch = new_epoch
        self._observer = observer
        self._clock = clock
        self._terms = terms
        self._refill: Refill | None = refill
        self.token, self._epoch, self._number = grant.token, grant.epoch, grant.number
        self.origin = grant.origin
        self._queue: deque[Delta] = deque()
        self._queued = 0
        self._sending: tuple[Delta, bytes] | None = None
        """Under way, with the name of the epoch that it begins, if it does."""
        self._refilling = False
        """Redis has some of the whole books, and not yet all."""
        self._filled = asyncio.Event()
        self._renew_at = float("-inf")
        # what the grant set runs out no later than this
        self._leased_until = clock() + terms.lease_s

    def __repr__(self) -> str:
        return f"<Writer of {self._shelf.worker}: {self._number} in {self._epoch!r}, {self.pending} pending>"

    @property
    def pending(self) -> int:
        """Entries that Redis does not have yet; the whole books count as one."""
        sending = 0 if self._sending is None else len(self._sending[0]) or 1
        return self._queued + sending + (self._refilling or bool(self._refill))

    @property
    def leased(self) -> bool:
        """Whether its lease may still stand, by its own clock: nobody else writes then."""
        return self._clock() < self._leased_until

    @property
    def head(self) -> tuple[bytes, int]:
        """Epoch and number of the batch written last."""
        return self._epoch, self._number

    def put(self, delta: Delta) -> None:
        """Never waits, never fails."""
        if self._refill:
            return  # the whole books, taken later, will have it
        self._queue.append(delta)
        self._queued += len(delta) or 1
        if self._queued > MAX_QUEUED:
            self._give_up_queue("overflow")
        self._filled.set()

    async def run(self) -> None:
        """Raises Fenced, and Yields where another asks rightly. Redis away is waited for."""
        while True:
            try:
                await self._step()
            except StoreError:
                await self._shelf.again()

    async def settle(self) -> None:
        """Redis has it all, for the successor, also what it lost meanwhile. Not while `run` runs. Raises
        StoreError, Fenced."""
        await self.renew()
        await self.flush()

    async def flush(self) -> None:
        """Sends what is left. Not while `run` runs. Raises StoreError, Fenced."""
        while self.pending:
            await self._send_next()

    async def renew(self) -> Asking | None:
        """Gives who asks for this worker. Raises StoreError, Fenced."""
        began = self._clock()
        terms = self._terms
        renewal = await self._shelf.renew(
            self.token, self._owner, terms.lease_s, terms.keep_s, self._duty.told()
        )
        await self._obey(renewal.outcome)
        self._renew_at = began + terms.renew_s
        self._leased_until = self._clock() + terms.lease_s
        return renewal.asking

    async def release(self, heir: str = "") -> bool:
        """False where it is not the writer any more. Raises StoreError."""
        return await self._shelf.release(self.token, self._owner, heir, self._terms.lease_s)

    # steps

    async def _step(self) -> None:
        if self._clock() >= self._renew_at:
            asking = await self.renew()
            # in calm times only: what is pending would have to be flushed first
            calm = self.pending <= BATCH and not self._refill
            if asking is not None and calm and self._duty.yields(asking.figure):
                raise Yields(asking.owner)
        if self.pending:
            await self._send_next()
            return
        self._filled.clear()
        try:
            async with asyncio.timeout(max(0.0, self._renew_at - self._clock())):
                await self._filled.wait()
        except TimeoutError:
            pass

    async def _send_next(self) -> None:
        if self._refill:
            await self._write_whole()
            return
        if self._sending is None:
            delta = self._take()
            self._sending = delta, self._new_epoch() if delta.reset else b""
        delta, new_epoch = self._sending
        # sent again under the same number after an error: Redis counts it once
        outcome = await self._shelf.apply(
            self.token, self._epoch, self._number + 1, delta, new_epoch=new_epoch, complete=True
        )
        if outcome is Outcome.OK:
            self._applied(new_epoch)
            self._sending = None
        else:
            await self._obey(outcome)

    async def _write_whole(self) -> None:
        """The books of now. Those who load meanwhile see it is not complete until the last part."""
        reason = self._refill
        assert reason is not None  # noqa: S101 - asked for where there is one
        parts = self._whole()
        self._queue.clear()
        self._queued, self._sending, self._refill = 0, None, None
        self._refilling = True
        sent, part = 0, next(parts, None)
        try:
            while part is not None:
                following = next(parts, None)
                new_epoch = b"" if sent else self._new_epoch()
                outcome = await self._shelf.apply(
                    self.token, self._epoch, self._number + 1, part,
                    new_epoch=new_epoch, complete=following is None,
                )  # fmt: skip
                if outcome is not Outcome.OK:
                    await self._obey(outcome)
                    return
                self._applied(new_epoch)
                sent, part = sent + 1, following
                if self._clock() >= self._renew_at:
                    await self.renew()
        except StoreError:
            self._give_up_queue(reason)
            raise
        finally:
            self._refilling = False
        log.info(
            "the books of a worker were written to Redis anew",
            extra={"worker": self._shelf.worker, "reason": reason, "parts": sent},
        )
        self._observer.refilled(reason)

    def _take(self) -> Delta:
        """The oldest, with as many behind it as make one batch."""
        delta = self._queue.popleft()
        self._queued -= len(delta) or 1
        while self._queue and len(delta) + len(self._queue[0]) <= BATCH:
            later = self._queue.popleft()
            self._queued -= len(later) or 1
            delta.merge(later)
        return delta

    def _applied(self, new_epoch: bytes) -> None:
        self._number += 1
        self._epoch = new_epoch or self._epoch

    async def _obey(self, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            return
        if outcome is Outcome.VOIDED:
            raise Voided
        own = Own(self.origin, self._known())
        # whatever becomes of the answer to what follows: should it go on writing, then with its whole books
        self._give_up_queue("lost")
        if outcome is Outcome.LOST:
            grant = await self._shelf.acquire(self._owner, self._terms.lease_s, own)
        else:
            grant = await self._shelf.resume(self._owner, self._terms.lease_s, own)
        if grant is None:
            # cut off while Redis lost it all, and followed by one who had nothing to begin with?
            grant = await self._shelf.reclaim(self._owner, self._terms.lease_s, own)
        if grant is None:
            raise Fenced
        log.warning(
            "Redis lost what was written of a worker; it is written again",
            extra={"worker": self._shelf.worker, "blocks": own.blocks},
        )
        self.token, self._epoch, self._number = grant.token, grant.epoch, grant.number
        self._leased_until = self._clock() + self._terms.lease_s

    def _give_up_queue(self, reason: Refill) -> None:
        self._queue.clear()
        self._queued, self._sending, self._refill = 0, None, reason
        self._filled.set()
