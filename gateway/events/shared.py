"""Following one worker together with other replicas: one of them writes, the others mirror.

Whoever holds the worker's lease follows its engine, applies what it says to its own index at once, and writes
it to Redis. The others mirror, and try for the lease, which runs out when its holder dies. A successor takes
the books out of Redis and goes on where they end. One that has little to do is handed workers by those who
have much (`balance`). A replica that never saw Redis follows for itself alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.errors import StoreError
from gateway.events.books import BookSink, load_books
from gateway.events.follower import Follower, FollowerState, FollowerStatus
from gateway.events.ports import Snapshot
from gateway.events.share import Role, Share, ShareStatus
from gateway.events.share_observers import Mirrored, Written
from gateway.events.turn import Turn
from gateway.index.replication.mirror import Mirror, MirrorState
from gateway.index.replication.shelf import NOTHING, Grant, Own, Shelf
from gateway.index.replication.writer import Fenced, Refill, Voided, Writer, Yields
from gateway.types import WorkerId

log = logging.getLogger(__name__)

LEAVE_S = 1.0
"""How long an orderly end may take to tell Redis."""
KEEP_LEASES = 2.0
"""How many leases long a replica that handed a worker over keeps the books, should the heir find none."""
HESITATE_S = 0.05
"""For each worker that a replica writes already, it lets others try first for so long."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The books of a worker that was handed over: right as long as its mirror stands at `head`."""

    snapshot: Snapshot
    sink: BookSink
    head: tuple[bytes, int]
    until: float


MakeFollower = Callable[[BookSink, Snapshot | None], Follower]


class SharedFollower:
    """`run` it in a task; cancel the task to end it in order."""

    def __init__(
        self,
        worker: WorkerId,
        model: str,
        block_size: int,
        make_follower: MakeFollower,
        share: Share,
        *,
        movable: bool = True,
    ) -> None:
        """`movable` where the engine repeats what a successor did not hear: without, a hand-over would cost
        all that is known of it."""
        self._movable = movable
        self._worker = worker
        self._model = model
        self._block_size = block_size
        self._make_follower = make_follower
        self._share = share
        self.shelf = Shelf(share.store, worker, share.scripts)
        self._mirror = Mirror(self.shelf, share.index, Mirrored(worker, share.observer), loads=share.loads)
        self._mirroring: asyncio.Task[None] | None = None
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._sink: BookSink | None = None
        self._origin = b""
        """Of the books of its own follower."""
        self._turn = Turn(share.terms.lease_s / 2)
        self._kept: _Kept | None = None

    def __repr__(self) -> str:
        return f"<SharedFollower {self._worker}: {self.share_status()}>"

    async def run(self) -> None:
        """Raises ConfigError for an endpoint of events that can't be one."""
        try:
            while True:
                await self._live()
        finally:
            self._share.balance.dropped(self._worker)
            self._share.balance.forget(self._worker)
            await _end(self._mirroring)
            await _end(self._following)

    def answered(self, new_blocks: int, took_s: float) -> None:
        if self._follower is not None:
            self._follower.answered(new_blocks, took_s)

    def status(self) -> FollowerStatus:
        if self._follower is not None:
            return self._follower.status()
        mirror = self._mirror.state.value
        reason = f"another replica follows its engine; here: {mirror}"
        return FollowerStatus(FollowerState.MIRRORING, reason, self._mirror.head[1], 0, 0, {}, mirror)

    def share_status(self) -> ShareStatus:
        writer = self._sink.writer if self._sink is not None else None
        epoch, number = self._mirror.head if writer is None else writer.head
        role = Role.MIRROR if self._sink is None else Role.ALONE if writer is None else Role.WRITER
        return ShareStatus(
            worker=self._worker,
            role=role.value,
            mirror=self._mirror.state.value if self._sink is None else "",
            epoch=epoch.decode(errors="replace"),
            number=number,
            pending=0 if writer is None else writer.pending,
            loads=self._mirror.loads,
            leased=writer is not None and writer.leased,
        )

    @property
    def loading(self) -> bool:
        """It does not know yet what Redis has."""
        mirror = self._mirror
        return self._sink is None and mirror.loads == 0 and mirror.state is MirrorState.LOADING

    async def void(self) -> None:
        """All that is known of the worker is void, for every replica. Raises StoreError."""
        await self.shelf.void(self._share.new_epoch())

    def stand(self) -> tuple[bytes, int] | None:
        """Epoch and number of the batch that this replica's index stands at; None while it is on its way."""
        if self._sink is None:
            return self._mirror.head
        writer = self._sink.writer
        return None if writer is None or writer.pending else writer.head

    # one turn

    async def _live(self) -> None:
        share, balance = self._share, self._share.balance
        await asyncio.sleep(min(1.0, HESITATE_S * len(balance.writing)))
        try:
            answer = await self.shelf.contend(
                share.owner, share.terms.lease_s, balance.asks(self._worker),
                returned=self._turn.waits(share.clock()) and self._keepsake() is None, own=self._own(),
            )  # fmt: skip
            if isinstance(answer, Grant):
                await self._take_over(answer)
                return
            current = self._mirror.state is MirrorState.FOLLOWING
            balance.heard(self._worker, answer.writes if current else 0, share.clock())
        except StoreError:
            self._turn.away()
            if not self._mirror.knows and self._following is None:
                self._follow(None)
        else:
            if answer.left_s:
                self._turn.stood(answer.left_s, share.clock())
                await self._stop_following()
            else:
                self._turn.missing(share.clock())
        if self._following is None:
            self._start_mirroring()
        await self._wait(share.terms.lease_s / 5 * (0.5 + share.random()))

    async def _take_over(self, grant: Grant) -> None:
        """Writes until it is fenced off. Raises StoreError while taking over."""
        await _end(self._mirroring)
        self._mirroring = None
        refill: Refill | None = (
            "first contact" if self._following is not None else await self._begin_following(grant)
        )
        sink = self._sink
        assert sink is not None  # noqa: S101 (following and sink come and go together)
        self._origin = grant.origin
        sink.writer = writer = self._make_writer(grant, sink, refill)
        self._share.balance.took(self._worker)
        self._share.observer.took_over(self._worker)
        log.info("this replica writes a worker's blocks", extra={"worker": self._worker, "refill": refill})
        try:
            await self._write(writer)
        finally:
            self._share.balance.dropped(self._worker)

    async def _begin_following(self, grant: Grant) -> Refill | None:
        """From the books in Redis; where it has none, from those kept here, or from nothing. Gives why Redis
        is to be filled again; None where it has all."""
        await self._mirror.settle()
        if (snapshot := await self._load(grant)) is not None:
            self._follow(snapshot)
            return None
        kept, self._kept = self._keepsake(), None
        if kept is not None:
            self._sink = kept.sink
            self._follow(kept.snapshot)
            return "lost"
        self._give_up(grant)
        self._follow(None)
        return "no books"

    def _give_up(self, grant: Grant) -> None:
        blocks = self._share.index.count(self._worker)
        if blocks:
            log.warning(
                "a worker's blocks are given up: nobody has its books any more",
                extra={
                    "worker": self._worker,
                    "blocks": blocks,
                    "reason": "Redis does not have them whole, for this model"
                    if grant.epoch
                    else "Redis was emptied, and who wrote them is gone",
                },
            )
        self._share.index.clear(self._worker)

    async def _load(self, grant: Grant) -> Snapshot | None:
        sink = BookSink(self._worker, self._share.index, self._model, self._block_size)
        self._sink = sink
        try:
            return await load_books(self.shelf, grant, sink)
        except BaseException:
            self._sink = None
            raise

    async def _write(self, writer: Writer) -> None:
        writing = asyncio.create_task(writer.run(), name=f"writer of {self._worker}")
        try:
            await self._first_of(writing)
        except Voided:
            log.info("what was known of a worker is void: learned anew", extra={"worker": self._worker})
            await self._stop_following()
        except Fenced:
            log.warning("another replica writes this worker now", extra={"worker": self._worker})
            self._share.observer.fenced(self._worker)
            await self._stop_following()
        except Yields as asked:
            await self._hand_over(writer, asked.heir)
        finally:
            if not writing.done():
                await _end(writing)
                await _end(self._following)
                await _leave(writer)

    async def _hand_over(self, writer: Writer, heir: str) -> None:
        """All that is known here is in Redis before another may write; from then on it is mirrored. Where
        that fails (Redis is away, or emptied meanwhile), this replica goes on with what it knows."""
        share, follower, sink = self._share, self._follower, self._sink
        assert follower is not None and sink is not None  # noqa: S101, PT018
        share.balance.dropped(self._worker)  # others may be asked for at the same time
        await _end(self._following)  # nothing more is learned
        handed, head = False, None
        try:
            async with asyncio.timeout(LEAVE_S):
                await writer.settle()
                head = await self.shelf.head()
                handed = await writer.release(heir)
        except (StoreError, TimeoutError):
            pass
        except Fenced:
            await self._stop_following()
            return
        sink.writer = None
        if not handed:
            self._origin = writer.origin
            self._follow(follower.snapshot())
            return
        await self._stop_following()
        if head is not None and (head.epoch, head.number, head.token) == (*writer.head, writer.token):
            self._mirror.adopt(head)  # without a load: the index has it all
            until = share.clock() + KEEP_LEASES * share.terms.lease_s
            self._kept = _Kept(follower.snapshot(), sink, self._mirror.head, until)
        self._turn.stood(share.terms.lease_s, share.clock())
        log.info(
            "a worker is handed over to a replica with less to do",
            extra={"worker": self._worker, "replica": heir},
        )

    async def _first_of(self, writing: asyncio.Task[None]) -> None:
        """Until the writer is fenced off or the follower fails; either raises."""
        following = self._following
        assert following is not None  # noqa: S101
        await asyncio.wait({writing, following}, return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, following):
            if task.done():
                task.result()

    async def _wait(self, seconds: float) -> None:
        """A follower or a mirror that fails meanwhile ends it, with its error."""
        running = {task for task in (self._following, self._mirroring) if task is not None}
        done, _ = await asyncio.wait(running, timeout=seconds)
        for task in done:
            task.result()

    # parts

    def _keepsake(self) -> _Kept | None:
        kept = self._kept
        if kept is not None and (
            self._mirror.head != kept.head or self._share.clock() > kept.until or self._following is not None
        ):
            kept = self._kept = None  # the heir writes
        return kept

    def _own(self) -> Own:
        return NOTHING if self._sink is None else Own(self._origin, len(self._sink.ledger))

    def _follow(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            self._origin = self._share.new_epoch()
        if self._sink is None:
            self._sink = BookSink(self._worker, self._share.index, self._model, self._block_size)
        self._follower = self._make_follower(self._sink, snapshot)
        self._following = asyncio.create_task(self._follower.run(), name=f"follower of {self._worker}")

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._mirror.distrust()  # the index has what this follower said
        await _end(self._following)
        self._following = self._follower = self._sink = None

    def _start_mirroring(self) -> None:
        if self._mirroring is None:
            self._mirroring = asyncio.create_task(self._mirror.run(), name=f"mirror of {self._worker}")

    def _make_writer(self, grant: Grant, sink: BookSink, refill: Refill | None) -> Writer:
        share = self._share
        return Writer(
            self.shelf,
            share.owner,
            grant,
            whole=sink.whole,
            known=lambda: len(sink.ledger),
            new_epoch=share.new_epoch,
            observer=Written(self._worker, share.observer),
            clock=share.clock,
            terms=share.terms,
            refill=refill,
            duty=share.balance if self._movable else None,
        )


async def _leave(writer: Writer) -> None:
    """Writes what is left and gives the lease back; where Redis does not answer, it runs out by itself."""
    with contextlib.suppress(StoreError, Fenced, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await writer.settle()
            await writer.release()


async def _end(task: Awaitable[None] | None) -> None:
    if isinstance(task, asyncio.Task):
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it had failed already: whoever waits for its result has heard of it
