"""Blocks that an engine keeps in slower tiers (CPU memory, storage), by its own names.

They are not what prefill can use at once, so they are counted apart and never enter the index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from gateway.types import EngineHash


class Tiers:
    """Copies by medium and engine hash, at most `max_blocks` a medium: beyond it the oldest are forgotten."""

    def __init__(self, max_blocks: int) -> None:
        self.touched: set[tuple[str, EngineHash]] | None = None
        """Places whose copies changed; None where nobody keeps account of it."""
        self._max_blocks = max_blocks
        self._media: dict[str, OrderedDict[EngineHash, int]] = {}

    def __bool__(self) -> bool:
        return any(self._media.values())

    def __contains__(self, block: object) -> bool:
        return any(block in held for held in self._media.values())

    def __iter__(self) -> Iterator[EngineHash]:
        for held in self._media.values():
            yield from held

    def stored(self, medium: str, blocks: Iterable[EngineHash]) -> list[EngineHash]:
        """One more copy of each; returns blocks that were forgotten for them."""
        held = self._media.setdefault(medium, OrderedDict())
        for block in blocks:
            held[block] = held.get(block, 0) + 1
            self._touch(medium, block)
        forgotten = [held.popitem(last=False)[0] for _ in range(len(held) - self._max_blocks)]
        for block in forgotten:
            self._touch(medium, block)
        return forgotten

    def removed(self, medium: str, blocks: Iterable[EngineHash]) -> list[EngineHash]:
        """One copy of each less; returns those that this medium holds no more."""
        held = self._media.get(medium)
        gone: list[EngineHash] = []
        if held is None:
            return gone
        for block in blocks:
            self._touch(medium, block)
            if held.get(block, 0) > 1:
                held[block] -= 1
            elif held.pop(block, None) is not None:
                gone.append(block)
        return gone

    def clear(self) -> None:
        self._media.clear()

    def copies(self, medium: str, block: EngineHash) -> int:
        held = self._media.get(medium)
        return 0 if held is None else held.get(block, 0)

    def places(self) -> Iterator[tuple[str, EngineHash]]:
        """Every medium and block in it."""
        return ((medium, block) for medium, held in self._media.items() for block in held)

    def _touch(self, medium: str, block: EngineHash) -> None:
        if self.touched is not None:
            self.touched.add((medium, block))

    def sizes(self) -> dict[str, int]:
        """Blocks held, by medium."""
        return {medium: len(held) for medium, held in self._media.items()}

    def copy(self) -> dict[str, dict[EngineHash, int]]:
        """Blocks and their copies, by medium, as they are now."""
        return {medium: dict(held) for medium, held in self._media.items()}

    def recall(self, medium: str, block: EngineHash, copies: int) -> None:
        """As another ledger had it: whoever keeps account of it knows it."""
        self._media.setdefault(medium, OrderedDict())[block] = copies
