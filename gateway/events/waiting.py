"""Stores whose parent is not known (yet): kept aside, joined when it turns up, never rooted wrongly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from gateway.kv.events import BlockStored
from gateway.types import EngineHash


class Waiting:
    """One store that waits. `gone` are the positions of its blocks that were removed again meanwhile;
    `number` is its place in the order in which they came."""

    __slots__ = ("event", "gone", "number")

    def __init__(self, event: BlockStored, gone: Iterable[int] = ()) -> None:
        self.event = event
        self.gone = set(gone)
        self.number = -1


class WaitingRoom:
    """At most `max_blocks` blocks wait; the store that has waited longest makes room for the next."""

    def __init__(self, max_blocks: int) -> None:
        self.dropped = 0
        """Blocks given up so far because too many waited."""
        self.touched: set[int] | None = None
        """Numbers of stores that came, changed or left; None where nobody keeps account of it."""
        self._max_blocks = max_blocks
        self._blocks = 0
        self._next = 0
        self._order: OrderedDict[int, Waiting] = OrderedDict()
        self._by_parent: dict[EngineHash | None, list[Waiting]] = {}
        self._places: dict[EngineHash, list[tuple[Waiting, int]]] = {}

    def __len__(self) -> int:
        """Blocks that wait."""
        return self._blocks

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._order.values())

    def add(self, waiting: Waiting, number: int | None = None) -> None:
        """`number` is given to one that had it before."""
        event = waiting.event
        waiting.number = self._next if number is None else number
        self._next = max(self._next, waiting.number) + 1
        self._order[waiting.number] = waiting
        self._touch(waiting)
        self._by_parent.setdefault(event.parent_block_hash, []).append(waiting)
        for place, block in enumerate(event.block_hashes):
            self._places.setdefault(block, []).append((waiting, place))
        self._blocks += len(event.block_hashes)
        while self._blocks > self._max_blocks:
            _, oldest = self._order.popitem(last=False)
            self._leave(oldest)
            self.dropped += len(oldest.event.block_hashes)

    def recall(self, waiting: Waiting, number: int) -> None:
        """One of a ledger before this one, under its old number: whoever keeps account of it knows it."""
        self.add(waiting, number)
        if self.touched is not None:
            self.touched.discard(number)

    def copy(self) -> dict[int, Waiting]:
        """Those that wait, by number, as they are now."""
        return {number: Waiting(one.event, one.gone) for number, one in self._order.items()}

    def take(self, parent: EngineHash) -> list[Waiting]:
        """Those that waited for this block; they wait no more."""
        found = self._by_parent.get(parent, [])
        for waiting in found:
            del self._order[waiting.number]
            self._leave(waiting)
        return found

    def remove(self, block: EngineHash) -> bool:
        """One copy of a block is gone; False where none waits under this name."""
        for waiting, place in self._places.get(block, ()):
            if place not in waiting.gone:
                waiting.gone.add(place)
                self._touch(waiting)
                return True
        return False

    def clear(self) -> None:
        self._order.clear()
        self._by_parent.clear()
        self._places.clear()
        self._blocks = 0

    def get(self, number: int) -> Waiting | None:
        return self._order.get(number)

    def _touch(self, waiting: Waiting) -> None:
        if self.touched is not None:
            self.touched.add(waiting.number)

    def _leave(self, waiting: Waiting) -> None:
        event = waiting.event
        self._touch(waiting)
        self._blocks -= len(event.block_hashes)
        _drop(self._by_parent, event.parent_block_hash, waiting)
        for place, block in enumerate(event.block_hashes):
            _drop(self._places, block, (waiting, place))


def _drop(groups: dict[Any, list[Any]], name: object, member: object) -> None:
    """Takes `member` out of the group `name`; an empty group goes too. The group's list itself is left as it
    is: who asked for it may be walking it."""
    rest = [other for other in groups[name] if other != member]
    if rest:
        groups[name] = rest
    else:
        del groups[name]
