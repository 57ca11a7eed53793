"""Tells the other replicas what this one has in flight and where its requests went, and hears the same from
them.

Load travels as state: the last word of a replica is the truth about it, and silence means that nothing of it
is left. So nothing has to be undone after a crash, a lost message or an emptied Redis. Two tasks: one speaks,
one listens; a request only puts its placement into the outbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import StoreError
from gateway.fleet.load import LoadBoard, LoadVector
from gateway.fleet.sharing.outbox import Outbox
from gateway.fleet.sharing.peers import Peers
from gateway.fleet.sharing.words import Word, decode, encode
from gateway.lasting import Lasting
from gateway.steady import SURE_S, Steady
from gateway.types import BlockKey, Clock, WorkerId

log = logging.getLogger(__name__)


class Bus(Protocol):
    """One channel that all replicas share."""

    async def publish(self, data: bytes) -> None:
        """Raises StoreError, within its deadline."""
        ...

    def listen(self) -> AsyncGenerator[bytes | None]:
        """What is published from now on, the own words too; None whenever nothing came for a while. Raises
        StoreError where the connection fails."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    tick: float = 0.05
    """A change of load is told at most so often, unless a placement takes it along sooner."""
    beat: float = 0.25
    """Something is said at least so often."""
    retry: float = 0.5
    """After an error."""
    echo: float = 2.0
    """One that did not hear its own words for so long has a dead connection."""
    sure: float = SURE_S
    """What was lost counts as back for the log after so long."""


@dataclass(frozen=True, slots=True)
class SharingStatus:
    replica: str
    speaking: bool
    """The last word reached Redis."""
    listening: bool
    peers: tuple[str, ...]
    words_out: int
    words_in: int
    unread: int
    """Messages on the channel that could not be read."""
    placements_dropped: int


class LoadSharing:
    """`start` it once the loop runs; `close` says goodbye."""

    def __init__(
        self,
        me: str,
        bus: Bus,
        board: LoadBoard,
        peers: Peers,
        *,
        clock: Clock,
        random: Callable[[], float],
        pace: Pace | None = None,
        outbox: Outbox | None = None,
        lasting: Lasting | None = None,
    ) -> None:
        self._me = me
        self._bus = bus
        self._board = board
        self._peers = peers
        self._clock = clock
        self._random = random
        self._pace = pace or Pace()
        self._outbox = outbox or Outbox()
        self._lasting = lasting or Lasting()
        self._number = 0
        self._said: Mapping[WorkerId, LoadVector] | None = None
        """The whole vector as peers know it; None where that is not sure."""
        self._said_at = float("-inf")
        self._speaking = self._listening = False
        self._speech, self._hearing = Steady(self._pace.sure), Steady(self._pace.sure)
        """What the log says of them."""
        self._speaking_since = float("-inf")
        self._heard_myself = float("-inf")
        self._words_in = self._unread = self._dropped = 0
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<LoadSharing {self._me}: {len(self._peers)} peers>"

    def placed(self, worker: WorkerId, keys: Sequence[BlockKey]) -> None:
        """A request was routed there. Returns at once."""
        self._outbox.put(worker, keys)

    def start(self) -> None:
        self._tasks = [
            self._lasting.begin(
                self._speak,
                "tell peers",
                lost="other replicas route without this one's load and placements",
                failed=self._speech_failed,
            ),
            self._lasting.begin(
                self._listen,
                "hear peers",
                lost="the peers' load and placements are unknown here",
                failed=self._hearing_failed,
            ),
        ]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            with contextlib.suppress(StoreError):  # then silence says it
                await self._bus.publish(encode(Word(self._me, self._number + 1, leaving=True)))

    def status(self) -> SharingStatus:
        return SharingStatus(
            replica=self._me,
            speaking=self._speaking,
            listening=self._listening,
            peers=tuple(self._peers.names()),
            words_out=self._number,
            words_in=self._words_in,
            unread=self._unread,
            placements_dropped=self._dropped + self._outbox.dropped,
        )

    # speaking

    async def _speak(self) -> None:
        while True:
            await self._outbox.wait(self._pace.tick)
            now = self._clock()
            for name in self._peers.expire(now):
                log.info("a replica fell silent; its load is dropped", extra={"replica": name})
            word = self._next_word(now)
            if word is None:
                continue
            try:
                await self._bus.publish(encode(word))
            except StoreError as error:
                self._could_not_speak(word, error)
                await asyncio.sleep(self._pace.retry)
            else:
                now = self._clock()
                if (lasted := self._speech.there(now)) is not None:
                    log.info("load is shared with other replicas", extra=self._since(lasted))
                if not self._speaking:
                    self._speaking_since = now
                self._speaking = True

    def _next_word(self, now: float) -> Word | None:
        """None where there is nothing new to say. A placement takes the load of its worker along, so that
        nobody sees the promise without its price; the whole vector follows with the tick."""
        placements = self._outbox.take()
        loads = self._board.own_vector()
        due = now - self._said_at
        whole = self._said is None or due >= self._pace.beat
        whole = whole or (due >= self._pace.tick and loads != self._said)
        if not whole and not placements:
            return None
        self._number += 1
        if whole:
            self._said, self._said_at = loads, now
        else:
            named = {placed.worker for placed in placements}
            loads = {worker: vector for worker, vector in loads.items() if worker in named}
        return Word(self._me, self._number, loads, placements, whole)

    def _could_not_speak(self, word: Word, error: StoreError) -> None:
        self._said = None
        self._dropped += len(word.placements)
        if self._speech.gone(self._clock()):
            log.warning(
                "load is not shared: other replicas route without this one's load and placements",
                extra={"reason": error.message},
            )
        self._speaking = False

    def _speech_failed(self, error: Exception) -> None:
        self._speaking, self._said = False, None

    # listening

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
                reason = "the channel is dead: own words did not come back"
            except StoreError as error:
                reason = error.message
            began = self._hearing.told is None  # of that the other task speaks
            if self._hearing.gone(self._clock()) and not began:
                log.warning(
                    "peers are not heard: their load and placements are unknown here",
                    extra={"reason": reason},
                )
            self._listening = False
            await asyncio.sleep(self._pace.retry * (0.5 + self._random()))

    def _hearing_failed(self, error: Exception) -> None:
        self._listening = False

    async def _hear(self) -> None:
        """Returns when the connection seems dead."""
        since: float | None = None
        async with contextlib.aclosing(self._bus.listen()) as messages:
            async for data in messages:
                now = self._clock()
                if since is None:
                    since = now  # to get here may have taken long
                if data is not None:
                    self._on_message(data, now)
                # own words come back only if they got there
                if now - max(since, self._heard_myself, self._speaking_since) > self._pace.echo:
                    return

    def _since(self, lasted: float) -> dict[str, object]:
        return {"replica": self._me, "for_s": round(lasted, 1)}

    def _on_message(self, data: bytes, now: float) -> None:
        word = decode(data)
        if word is None:
            self._unread += 1
            return
        if (lasted := self._hearing.there(now)) is not None:
            log.info("peers are heard", extra=self._since(lasted))
        self._listening = True
        if word.replica == self._me:
            self._heard_myself = now
            return
        known = self._peers.knows(word.replica)
        if not known:
            self._said = None  # it must hear all that is in flight here
        if self._peers.hear(word, now):
            self._words_in += 1
            if not known and not word.leaving:
                log.info("a replica is heard; its load counts", extra={"replica": word.replica})
