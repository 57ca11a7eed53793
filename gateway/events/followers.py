"""One follower per worker that publishes events: started, replaced and ended as the fleet changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq.asyncio

from gateway.errors import ConfigError
from gateway.events.follower import Follower, FollowerState, FollowerStatus
from gateway.events.ledger import Ledger
from gateway.events.ports import Observer, Sink, Snapshot, Source
from gateway.events.rounds import Rounds
from gateway.events.share import Share
from gateway.events.shared import SharedFollower
from gateway.fleet.worker import Worker
from gateway.lasting import Lasting
from gateway.types import WorkerId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventStatus:
    """How the events of one worker are, for a person or a scraper."""

    state: str
    reason: str
    next_seq: int
    epochs: int
    gaps: int
    waiting_blocks: int
    """Stored blocks whose parent has not turned up."""
    endpoint: str
    replay: str | None
    """ZMQ endpoints: what is followed, and where what was missed is asked for."""
    mirror: str = ""
    """How current the mirror is of what another replica hears; empty where this one follows."""

    @property
    def silent(self) -> bool:
        return self.state == FollowerState.SILENT.value


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a follower depends on: another plan means another follower."""

    source: Source
    model: str
    unit: int


class Following(Protocol):
    """One worker's follower, alone or with other replicas."""

    async def run(self) -> None: ...

    def status(self) -> FollowerStatus: ...

    def answered(self, new_blocks: int, took_s: float) -> None: ...


@dataclass(slots=True)
class _Running:
    plan: _Plan
    follower: Following
    begun: bool = False
    task: asyncio.Task[None] | None = None


class Followers:
    """A fleet listener. A worker is followed from when its engine has said which model it serves."""

    def __init__(
        self,
        sink: Sink,
        observer: Observer,
        *,
        unit_of: Callable[[str], int],
        context: zmq.asyncio.Context,
        share: Share | None = None,
        lost: Callable[[WorkerId], None] | None = None,
        lasting: Lasting | None = None,
    ) -> None:
        """`unit_of` gives a model's tokens per block key. With a `share`, one replica of several follows a
        worker, and `sink` is not used: the share's index is. `lost` is told of each worker whose events break
        off, as they do when its engine dies."""
        self._sink = sink
        self._observer = observer
        self._unit_of = unit_of
        self._context = context
        self._share = share
        self._lost = lost
        self._lasting = lasting or Lasting()
        self._rounds = Rounds()
        self._running: dict[WorkerId, _Running] = {}
        self._broken: dict[WorkerId, str] = {}

    def added(self, worker: Worker) -> None:
        self.changed(worker)

    def changed(self, worker: Worker) -> None:
        plan = self._plan(worker)
        running = self._running.get(worker.id)
        if running is not None and running.plan == plan:
            return
        self._end(worker.id)
        if plan is not None:
            self._begin(worker, plan)

    def removed(self, worker: Worker) -> None:
        self._end(worker.id)

    def status(self, worker: WorkerId) -> EventStatus | None:
        """None for a worker that publishes no events."""
        running = self._running.get(worker)
        if running is None:
            return None
        status = running.follower.status()
        broken = self._broken.get(worker)
        return EventStatus(
            state="broken" if broken else status.state.value,
            reason=broken or status.reason,
            next_seq=status.next_seq,
            epochs=status.epochs,
            gaps=status.gaps,
            waiting_blocks=sum(ledger.waiting for ledger in status.ledgers.values()),
            endpoint=running.plan.source.events,
            replay=running.plan.source.replay,
            mirror=status.mirror,
        )

    def answered(self, worker: WorkerId, new_blocks: int, took_s: float) -> None:
        """The worker's engine must have filled so many new blocks for a request that came `took_s` seconds
        ago: their events are due."""
        running = self._running.get(worker)
        if running is not None:
            running.follower.answered(new_blocks, took_s)

    async def close(self) -> None:
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for worker in list(self._running):
            self._end(worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan(self, worker: Worker) -> _Plan | None:
        spec, info = worker.spec, worker.info
        if spec.events is None or info is None:
            return None
        return _Plan(Source(spec.events, spec.replay, spec.topic), info.model, self._unit_of(info.model))

    def shared(self) -> dict[WorkerId, SharedFollower]:
        """Those that share what they know with other replicas."""
        running = ((worker, one.follower) for worker, one in self._running.items())
        return {worker: follower for worker, follower in running if isinstance(follower, SharedFollower)}

    def _begin(self, worker: Worker, plan: _Plan) -> None:
        me = worker.id
        self._observer.followed(me)
        running = self._running[me] = _Running(plan, self._make(worker, plan))

        async def follow() -> None:
            if running.begun:  # what the one before knew is not to be trusted
                running.follower = self._make(worker, plan)
                self._broken.pop(me, None)
            running.begun = True
            await running.follower.run()

        running.task = self._lasting.begin(
            follow,
            "events",
            about=me,
            lost="what its engine holds is not learned, or not shared",
            failed=lambda error: self._broke(me, error),
            final=ConfigError,
        )
        running.task.add_done_callback(lambda ended: self._ended(me, ended))

    def _make(self, worker: Worker, plan: _Plan) -> Following:
        rank, me = worker.spec.dp_rank, worker.id

        def follower(sink: Sink, make_ledger: Callable[[], Ledger], snapshot: Snapshot | None) -> Follower:
            return Follower(
                me,
                plan.source,
                sink=sink,
                make_ledger=make_ledger,
                context=self._context,
                observer=self._observer,
                snapshot=snapshot,
                lost=self._lost,
                rounds=self._rounds,
                # several ranks may share an endpoint: each is followed for its own batches
                worker_of=lambda batch_rank: me if rank is None or batch_rank in (None, rank) else None,
            )

        if self._share is None:
            return follower(self._sink, lambda: Ledger(plan.model, block_size=plan.unit), None)
        return SharedFollower(
            me,
            plan.model,
            plan.unit,
            lambda sink, snapshot: follower(sink, sink.make_ledger, snapshot),
            self._share,
            movable=plan.source.replay is not None,
        )

    def _end(self, worker: WorkerId) -> None:
        running = self._running.pop(worker, None)
        self._broken.pop(worker, None)
        if running is not None and running.task is not None:
            running.task.cancel()

    def _broke(self, worker: WorkerId, error: Exception) -> None:
        """By a fault that nobody expected; it begins again."""
        self._broken[worker] = f"{type(error).__name__}: {error}"

    def _ended(self, worker: WorkerId, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._broken[worker] = reason = error.message if isinstance(error, ConfigError) else str(error)
        log.error("events can't be followed", extra={"worker": worker, "reason": reason}, exc_info=error)
