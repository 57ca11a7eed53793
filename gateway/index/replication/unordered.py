"""A worker's blocks as a scan of Redis gives them, in no order, and how they are taken out: by prompts.

An index that is given blocks in the order of their prompts has little to do for each. One that is given a
block before its parent makes room for that one and undoes it when it comes, and takes every block for the end
of a prompt meanwhile: three times the work.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.index.replication.wire import unpack_raw
from gateway.kv.parted import LOW, PartedKeys
from gateway.types import BlockKey

MOST = 256
"""Blocks of one run: a prompt may have tens of thousands."""


class Unordered:
    """Of one worker."""

    def __init__(self) -> None:
        self._before = PartedKeys[int]()
        """The key before each block's; 0 at a root."""
        self._followed = [set[int]() for _ in self._before.parts]
        """Keys that others follow, in the same parts."""
        self.copies: dict[int, int] = {}
        """Of those that the worker has several of."""

    def __len__(self) -> int:
        return len(self._before)

    def add(self, records: bytes) -> None:
        """A page. What comes twice is what it was the second time. Raises StoreError for bytes that no batch
        wrote."""
        parts, followed, copies = self._before.parts, self._followed, self.copies
        for key, before, count in unpack_raw(records):
            parts[key & LOW][key] = before
            followed[before & LOW].add(before)
            if count > 1:
                copies[key] = count
            elif copies:
                copies.pop(key, None)

    def runs(self) -> Iterator[tuple[list[BlockKey], BlockKey | None]]:
        """All of them, each once and then no more, as runs of up to MOST blocks that follow one another, and
        the key before the first of each, None at a root."""
        for part, followed in zip(self._before.parts, self._followed, strict=True):
            for key in list(part):
                if key not in followed:
                    yield from self._back_from(key)
            followed.clear()
        for part in self._before.parts:
            while part:  # a circle, which keys that are hashes hardly make
                yield from self._back_from(next(iter(part)))

    def _back_from(self, key: int) -> Iterator[tuple[list[BlockKey], BlockKey | None]]:
        """From the end of a prompt to its root, or to where another was gone through before."""
        parts, run = self._before.parts, list[BlockKey]()
        before = parts[key & LOW].pop(key, None)
        while before is not None:
            # the one int is what is held and what comes before the next: a quarter of an index's memory
            run.append(BlockKey(key))
            key, before = before, parts[before & LOW].pop(before, None)
            if before is None or len(run) == MOST:
                yield run[::-1], BlockKey(key) if key else None
                run = []
