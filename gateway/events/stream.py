"""What an engine's sequence numbers tell: is this batch the next one, a copy, or another life of the engine?

Pure. A publisher numbers its batches from 0 in each life of the engine, says nothing about a restart, and
keeps the latest batches for replay. So every replay begins one batch early: if the batch applied last is
still what it was, the engine is the same; if it is another or is gone, history is lost and a new epoch
begins. A batch is recognised by a digest of its bytes, which carry the time of its making.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from xxhash import xxh3_64_intdigest

MAX_UNSEEN = 16_384
"""Replayed batches remembered until their live copies pass; more than a publisher keeps by default."""


class Verdict(Enum):
    APPLY = "apply"
    """It is the next batch; it counts as applied now."""
    SKIP = "skip"
    """A copy of one that was applied."""
    LOST = "lost"
    """What lies between can't be had any more: a new epoch began, with this batch as its first."""
    REPLAY = "replay"
    """Batches are missing: replay, then, for a live batch, ask again."""
    RESTARTED = "restarted"
    """Another life of the engine: a new, empty epoch began. Replay, then, for a live batch, ask again."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one publisher has been followed: where a successor goes on."""

    next_seq: int
    digest: int
    """Of the batch before; 0 where nothing was applied in this epoch."""


START = Position(0, 0)


class EventStream:
    """Sequence logic of one publisher."""

    def __init__(self, position: Position = START) -> None:
        self._expected = position.next_seq
        self._digest = position.digest
        self._verified = False
        """In this replay, the batch applied last was seen again, or there is none."""
        self._hole: int | None = None
        """The sequence at which a replay last broke off."""
        self._unseen: deque[tuple[int, int]] = deque(maxlen=MAX_UNSEEN)

    @property
    def position(self) -> Position:
        return Position(self._expected, self._digest)

    def live(self, seq: int, payload: bytes) -> Verdict:
        """A batch from the live socket."""
        digest = xxh3_64_intdigest(payload)
        if seq < self._expected:
            if self._was_applied(seq, digest):
                return Verdict.SKIP
            self.begin_epoch()
            return Verdict.RESTARTED
        if seq > self._expected:
            return Verdict.REPLAY
        self._advance(seq, digest)
        return Verdict.APPLY

    def give_up(self, seq: int, payload: bytes) -> Verdict:
        """A live batch that still is ahead after the replay, or without one: go on with it."""
        verdict = Verdict.APPLY if self._is_empty() else Verdict.LOST
        self.begin_epoch()
        self._advance(seq, xxh3_64_intdigest(payload))
        return verdict

    def begin_replay(self) -> int:
        """The sequence number to ask from."""
        self._verified = self._is_empty()
        return self._expected if self._verified else self._expected - 1

    def replayed(self, seq: int, payload: bytes) -> Verdict:
        """A batch from a replay. After REPLAY or RESTARTED this replay is over; begin another."""
        digest = xxh3_64_intdigest(payload)
        if not self._verified and seq >= self._expected - 1:
            if seq >= self._expected:  # the one to recognise the engine by is gone, with all before
                return self._replayed_ahead(seq, digest)
            self._verified = digest == self._digest
            if self._verified:
                return Verdict.SKIP
            self.begin_epoch()
            return Verdict.RESTARTED
        if seq < self._expected:
            return Verdict.SKIP
        if seq > self._expected and not self._is_empty() and self._hole != self._expected:
            # a publisher drops replies that it can't get rid of: ask once more from here
            self._hole = self._expected
            return Verdict.REPLAY
        if seq > self._expected:
            return self._replayed_ahead(seq, digest)
        self._note_replayed(seq, digest)
        return Verdict.APPLY

    def end_replay(self) -> Verdict:
        """The replay is complete: SKIP where all is well, RESTARTED where the engine has less than we had."""
        if self._verified:
            return Verdict.SKIP
        self.begin_epoch()
        return Verdict.RESTARTED

    def begin_epoch(self) -> None:
        """Nothing that was applied counts any more."""
        self._expected, self._digest = START.next_seq, START.digest
        self._unseen.clear()

    def _replayed_ahead(self, seq: int, digest: int) -> Verdict:
        verdict = Verdict.APPLY if self._is_empty() else Verdict.LOST
        self.begin_epoch()
        self._note_replayed(seq, digest)
        return verdict

    def _note_replayed(self, seq: int, digest: int) -> None:
        self._advance(seq, digest)
        self._verified = True
        self._unseen.append((seq, digest))

    def _advance(self, seq: int, digest: int) -> None:
        self._expected, self._digest = seq + 1, digest

    def _is_empty(self) -> bool:
        return self._expected == 0

    def _was_applied(self, seq: int, digest: int) -> bool:
        unseen = self._unseen
        while unseen and unseen[0][0] < seq:  # live batches come in order
            unseen.popleft()
        if unseen and unseen[0][0] == seq:
            return unseen.popleft()[1] == digest
        return (seq, digest) == (self._expected - 1, self._digest)
