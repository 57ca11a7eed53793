"""The short way of a stream's usual read: on to the client byte for byte, its framing included.

Nearly every read of a stream is one chunk with one event that differs from an earlier one in its text alone,
and goes to a client who gets chunks, too. Taking it apart and framing it anew would give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.types import Clock

_LONGEST = 1024
"""Bytes of a chunk, its framing included, from which on it takes the long way."""


def _size_lines() -> tuple[bytes, ...]:
    """By the bytes of a whole chunk: the line that it begins with if it is framed as we would. For a length
    that no such chunk has it is longer than that, so that nothing begins with it."""
    lines = [b"0" * _LONGEST] * _LONGEST
    for size in range(1, _LONGEST):
        line = b"%x\r\n" % size
        whole = len(line) + size + 2
        if whole < _LONGEST:
            lines[whole] = line
    return tuple(lines)


_SIZE_LINES = _size_lines()


class Lane:
    """Of one answer, with what there is to note of the events that went by it. It may be asked from a read
    behind which nothing is left over, neither of a chunk nor of an event, until the first one that it does
    not take; that one it has not touched, and the long way finds all as if it had seen every one before.

    Searches are by `find`: with caches that have gone cold, as they have when a chunk comes alone, a regular
    expression costs twice as much as all else here together.
    """

    __slots__ = (
        "_before", "_behind", "_clock", "_ends", "_starts", "_write",
        "last", "longest_gap", "missed", "pieces",
    )  # fmt: skip

    def __init__(self, write: Callable[[bytes], object], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self.pieces = 0
        """Events that it has taken; whoever adds them to the others' sets it back."""
        self.longest_gap = 0.0
        """Seconds between two of them, or from the one before the first."""
        self.missed = 0
        """How often it was opened since it was last told that it had taken some."""

    def open(self, before: bytes, behind: bytes, last: float) -> None:
        """`before` and `behind` the text of an event in which there is nothing to read; `last` on the given
        clock, when the last event came."""
        self._before, self._behind = before, behind + b"\r\n"
        self._starts, self._ends = len(self._before), len(self._behind)
        self.last = last
        self.missed += 1

    def silent_s(self) -> float:
        """Seconds since the last event."""
        return self._clock() - self.last

    def takes(self, data: bytes) -> bool:
        """Whether this read, the bytes as they came, has gone on to the client."""
        size = len(data)
        if (
            size < _LONGEST
            and data.startswith(line := _SIZE_LINES[size])
            and data.startswith(self._before, ahead := len(line))
            and data.endswith(self._behind)
            # the text between them must not end its string, nor escape that end, nor be more than a line
            and (at := ahead + self._starts) <= (to := size - self._ends)
            and data.find(b'"', at, to) < 0
            and not data.endswith(b"\\", at, to)
            and data.find(b"\n", at, to) < 0
            and data.find(b"\r", at, to) < 0
        ):
            now = self._clock()
            if now - self.last > self.longest_gap:
                self.longest_gap = now - self.last
            self.last = now
            self.pieces += 1
            self._write(data)
            return True
        return False
