"""What a ledger knows: in figures for people, in pieces for whoever keeps a copy of the books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.events.waiting import Waiting
from gateway.types import BlockKey, EngineHash


@dataclass(frozen=True, slots=True)
class LedgerStats:
    blocks: int
    """The engine's blocks known by name."""
    waiting: int
    """Blocks whose parent is not known."""
    dropped: int
    """Blocks that waited in vain and were given up, so far."""
    rejected: int
    """Stores that contradict themselves, or are of a block size that can't be reconciled, so far."""
    foreign_groups: int
    """Events of K/V groups other than the one that counts, so far."""
    unknown_removals: int
    """Removals of blocks never heard of, so far."""
    tiers: dict[str, int]
    """Blocks in slower tiers, by medium."""
    unresolved: int
    """Of these, blocks whose key is not known."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One of the engine's blocks in the books: its copies on the GPU, and our keys for it."""

    copies: int
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """What changed in the books: entries as they are now, None where they are gone."""

    blocks: dict[EngineHash, BlockEntry | None]
    waiting: dict[int, Waiting | None]
    """By the number under which it waits."""
    tiers: dict[tuple[str, EngineHash], int]
    """Copies by medium and block."""


class WholeBooks:
    """All of the books as they were at one moment, told piece by piece while the ledger goes on.

    What is copied here is copied at once, some 20 ns a block; what takes longer happens as it is asked for.
    """

    def __init__(
        self,
        last: Mapping[EngineHash, BlockKey],
        units: Mapping[EngineHash, tuple[BlockKey, ...]],
        copies: Mapping[EngineHash, int],
        waiting: Mapping[int, Waiting],
        tiers: Mapping[str, Mapping[EngineHash, int]],
    ) -> None:
        self.waiting = waiting
        self._last = last
        self._units = units
        self._copies = copies
        self._tiers = tiers

    def blocks(self) -> Iterator[tuple[EngineHash, BlockEntry]]:
        for block, last in self._last.items():
            yield block, BlockEntry(self._copies.get(block, 1), self._units.get(block) or (last,))

    def tiers(self) -> Iterator[tuple[tuple[str, EngineHash], int]]:
        """Medium and block, and its copies there."""
        return (
            ((medium, block), copies)
            for medium, held in self._tiers.items()
            for block, copies in held.items()
        )
