"""Follows one engine's KV events: socket → sequence → codec → ledger → sink.

One task, which reads top to bottom. While a replay runs or the sink is slow, live batches wait in the socket,
which is bounded; what overflows it is a gap, and gaps are replayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

import zmq.asyncio

from gateway.errors import EventDecodeError
from gateway.events.ledger import Ledger
from gateway.events.ledger_state import LedgerStats
from gateway.events.ports import NullObserver, Observer, Sink, Snapshot, Source
from gateway.events.rounds import Rounds
from gateway.events.silence import SilenceWatch
from gateway.events.sockets import ReplayTimeout, Subscription, parse_frames, replay, subscribe
from gateway.events.stream import START, EventStream, Verdict
from gateway.index.changes import Change, Cleared, Stored
from gateway.kv.codec import decode_batch
from gateway.steady import Steady
from gateway.types import Clock, WorkerId

REPLAY_TIMEOUT = 5.0
CHECK_EVERY = 5.0


class FollowerState(Enum):
    CONNECTING = "connecting"
    FOLLOWING = "following"
    SILENT = "silent"
    """The engine answers requests that must have filled blocks, and no event comes: is its publisher on?"""
    MIRRORING = "mirroring"
    """Another replica follows it; what it learns comes through Redis."""
    UNSUPPORTED = "unsupported"
    """Events come that can't be indexed; `FollowerStatus.reason` says why."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    state: FollowerState
    reason: str
    next_seq: int
    epochs: int
    """How often all that was known became void."""
    gaps: int
    ledgers: Mapping[WorkerId, LedgerStats]
    mirror: str = ""
    """How current the mirror is of what another replica hears; empty where this one follows."""


class Follower:
    """Keeps `sink` up to date with what one publisher says. `run` it in a task; cancel the task to end it.

    `worker_of` names the worker of a data-parallel rank (None where it is nobody's); by default all ranks
    are `worker`. `make_ledger` gives an empty ledger for each. A `snapshot` of another follower is gone on
    with. `lost` is told when the connection to the publisher breaks. `rounds` are shared with others. `wall`
    is compared with the engine's clock for the lag; `replay_timeout` and `check_every`, in seconds, bound a
    replay's silence, and say how often an idle engine is asked whether it is still the same.
    """

    def __init__(
        self,
        worker: WorkerId,
        source: Source,
        *,
        sink: Sink,
        make_ledger: Callable[[], Ledger],
        context: zmq.asyncio.Context,
        observer: Observer | None = None,
        worker_of: Callable[[int | None], WorkerId | None] | None = None,
        snapshot: Snapshot | None = None,
        watch: SilenceWatch | None = None,
        lost: Callable[[WorkerId], None] | None = None,
        rounds: Rounds | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        replay_timeout: float = REPLAY_TIMEOUT,
        check_every: float = CHECK_EVERY,
    ) -> None:
        self._worker = worker
        self._source = source
        self._sink = sink
        self._make_ledger = make_ledger
        self._context = context
        self._observer = observer if observer is not None else NullObserver()
        self._worker_of = worker_of if worker_of is not None else lambda _: worker
        self._watch = watch if watch is not None else SilenceWatch()
        self._rounds = rounds if rounds is not None else Rounds()
        self._lost = lost if lost is not None else lambda _: None
        self._clock = clock
        self._wall = wall
        self._replay_timeout = replay_timeout
        self._check_every = check_every
        self._stream = EventStream(snapshot.position) if snapshot is not None else EventStream()
        self._ledgers: dict[WorkerId, Ledger] = dict(snapshot.ledgers) if snapshot is not None else {}
        self._connected = False
        self._told = Steady()
        self._was_connected = False
        self._epochs = 0
        self._gaps = 0

    def __repr__(self) -> str:
        return f"<Follower {self._worker} at {self._source.events}: {self._stream.position.next_seq}>"

    async def run(self) -> None:
        """Until cancelled. Raises ConfigError for an endpoint that can't be one, and what the sink raises."""
        try:
            with subscribe(self._context, self._source) as subscription:
                while True:
                    if await subscription.wait(self._check_every):
                        await self._read(subscription)
                    elif self._connected:
                        await self._catch_up()
                    if self._connected and not self._told.told:
                        self._tell()
        finally:
            self._connected = False

    def answered(self, new_blocks: int, took_s: float) -> None:
        """The engine answered a request that must have filled so many blocks that it did not hold before, and
        that came `took_s` seconds ago."""
        if new_blocks > 0:
            now = self._clock()
            self._watch.answered(now - took_s, now)

    def status(self) -> FollowerStatus:
        state, reason = self._state()
        return FollowerStatus(
            state=state,
            reason=reason,
            next_seq=self._stream.position.next_seq,
            epochs=self._epochs,
            gaps=self._gaps,
            ledgers={worker: ledger.stats() for worker, ledger in self._ledgers.items()},
        )

    def snapshot(self) -> Snapshot:
        """For another follower to go on with, once `run` has ended."""
        return Snapshot(self._stream.position, dict(self._ledgers))

    # what comes in

    async def _read(self, subscription: Subscription) -> None:
        for up in subscription.connections():
            await self._on_connection(up)
        while (frames := subscription.next()) is not None:
            await self._on_message(frames)

    async def _on_connection(self, up: bool) -> None:
        """A connection that comes (back) may lead to another life of the engine: look before going on."""
        self._connected = up
        self._tell()
        if not up:
            self._lost(self._worker)
            return
        certain = await self._catch_up()
        if self._was_connected and not certain and self._stream.position.next_seq:
            self._stream.begin_epoch()
            await self._new_epoch("lost")
        self._was_connected = True

    def _tell(self) -> None:
        now = self._clock()
        if self._connected:
            if self._told.there(now) is not None:
                self._observer.connected(self._worker, True)
        elif self._told.gone(now):
            self._observer.connected(self._worker, False)

    async def _on_message(self, frames: list[bytes]) -> None:
        message = parse_frames(frames)
        if message is None:
            self._observer.malformed(self._worker, 1)
            return
        self._watch.heard(self._clock())
        seq, payload = message
        verdict = self._stream.live(seq, payload)
        if verdict is Verdict.REPLAY:
            self._gaps += 1
            self._observer.gap(self._worker, seq - self._stream.position.next_seq)
        if verdict in (Verdict.REPLAY, Verdict.RESTARTED):
            await self._obey(verdict)
            await self._catch_up()
            verdict = self._stream.live(seq, payload)
        if verdict in (Verdict.REPLAY, Verdict.RESTARTED):
            await self._obey(verdict)
            verdict = self._stream.give_up(seq, payload)
        await self._obey(verdict)
        if verdict is not Verdict.SKIP:
            await self._apply(payload, live=True)

    async def _catch_up(self) -> bool:
        """Replays what is missing, and makes sure of the engine; False where the publisher doesn't answer."""
        if self._source.replay is None:
            return False
        try:
            while not await self._replay_once(self._source.replay):
                pass
        except ReplayTimeout:
            self._observer.replay_failed(self._worker)
            return False
        return True

    async def _replay_once(self, endpoint: str) -> bool:
        """One replay; False where another has to follow."""
        start = self._stream.begin_replay()
        async with aclosing(replay(self._context, endpoint, start, self._replay_timeout)) as batches:
            async for seq, payload in batches:
                verdict = self._stream.replayed(seq, payload)
                await self._obey(verdict)
                if verdict in (Verdict.REPLAY, Verdict.RESTARTED):
                    return False
                if verdict is not Verdict.SKIP:
                    self._watch.heard(self._clock())
                    await self._apply(payload, live=False)
        verdict = self._stream.end_replay()
        await self._obey(verdict)
        return verdict is Verdict.SKIP

    # what follows from it

    async def _obey(self, verdict: Verdict) -> None:
        if verdict is Verdict.LOST:
            await self._new_epoch("lost")
        elif verdict is Verdict.RESTARTED:
            await self._new_epoch("restarted")

    async def _new_epoch(self, reason: str) -> None:
        self._epochs += 1
        for worker, ledger in self._ledgers.items():
            self._observer.epoch(worker, reason)
            # the batch that begins the epoch is noted as read already; empty books are from before it
            await self._sink.apply(worker, ledger.reset(), START)

    async def _apply(self, payload: bytes, *, live: bool) -> None:
        began = await self._rounds.turn()  # a flood of events must not starve requests
        try:
            await self._take_in(payload, live=live)
        finally:
            self._rounds.spent(began)

    async def _take_in(self, payload: bytes, *, live: bool) -> None:
        try:
            batch = decode_batch(payload)
        except EventDecodeError:
            self._observer.malformed(self._worker, 1)
            return
        worker = self._worker_of(batch.dp_rank)
        if worker is None:
            return
        if batch.malformed:
            self._observer.malformed(worker, batch.malformed)
        changes: list[Change] = []
        ledger = self._ledgers.get(worker)
        if ledger is None:
            ledger = self._ledgers[worker] = self._make_ledger()
            changes.append(Cleared())  # whatever was believed of it before, empty books begin here
        changes += ledger.apply(batch)
        await self._sink.apply(worker, changes, self._stream.position)
        blocks = sum(len(change.keys) for change in changes if isinstance(change, Stored))
        self._observer.batch(worker, blocks, self._wall() - batch.ts if live else None)

    def _state(self) -> tuple[FollowerState, str]:
        unsupported = next((led.unsupported for led in self._ledgers.values() if led.unsupported), "")
        if unsupported:
            return FollowerState.UNSUPPORTED, unsupported
        if self._watch.silent(self._clock()):
            return FollowerState.SILENT, f"answers, but no events from {self._source.events}"
        if not self._connected:
            return FollowerState.CONNECTING, f"no connection to {self._source.events}"
        return FollowerState.FOLLOWING, ""
