"""How many connections each process has, where all of them can read it: a few words of shared memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

ABSENT = 2**32 - 1
"""In place of a count: nobody there takes connections."""
_WIDTH = 4


class Board:
    """One seat a process, which alone writes there. A stale count costs an uneven split, never more."""

    def __init__(self, fd: int, seats: int) -> None:
        self._map = mmap.mmap(fd, seats * _WIDTH)
        self._counts = memoryview(self._map).cast("I")

    def __len__(self) -> int:
        return len(self._counts)

    def set(self, seat: int, connections: int) -> None:
        self._counts[seat] = connections

    def leave(self, seat: int) -> None:
        self._counts[seat] = ABSENT

    def counts(self) -> list[int]:
        return self._counts.tolist()

    def close(self) -> None:
        self._counts.release()
        self._map.close()


def board_file(seats: int) -> int:
    """An open file without a name, for `Board` here and in children; all seats are empty. Raises OSError."""
    with tempfile.TemporaryFile() as file:
        file.write(ABSENT.to_bytes(_WIDTH, "little") * seats)
        file.flush()
        return os.dup(file.fileno())


def others_have_room(counts: Sequence[int], seat: int) -> bool:
    """Whether somebody else who takes connections has fewer than `seat` has."""
    mine = counts[seat]
    return any(count < mine for other, count in enumerate(counts) if other != seat and count != ABSENT)
