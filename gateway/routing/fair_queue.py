"""A bounded queue with priorities and weighted fair shares by key. Pure and deterministic.

Between priority classes the lower number always goes first. Within a class, keys share by start-time fair
queueing (Goyal, Vin and Cheng 1996): an item's start tag is the later of the class's virtual time and its
key's last finish tag, its finish tag is start + cost / weight, and the smallest start tag goes first. So a
key that floods the queue waits behind its own items, not others behind it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True, eq=False)
class Item:
    key: str
    priority: int
    weight: float
    cost: float
    start: float = field(default=0.0, init=False)
    serial: int = field(default=0, init=False)
    queued: bool = field(default=True, init=False)


@dataclass(slots=True)
class _Class:
    virtual_time: float = 0.0
    finish: dict[str, float] = field(default_factory=dict)
    heap: list[tuple[float, int, Item]] = field(default_factory=list)
    gone: int = 0
    """Entries of the heap whose item has left."""


class FairQueue:
    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._classes: dict[int, _Class] = {}
        self._by_key: dict[str, list[Item]] = {}
        self._size = 0
        self._serial = count()

    def __len__(self) -> int:
        return self._size

    def push(
        self, key: str, *, weight: float = 1.0, priority: int = 0, cost: float = 1.0
    ) -> tuple[Item, Item | None]:
        """(the item, who had to leave for it). In a full queue the newest item of the key that holds most of
        it, by weight, leaves, the new one itself where its own key does: nobody can lock others out."""
        item = Item(key, priority, weight, cost)
        item.serial = next(self._serial)
        lane = self._classes.setdefault(priority, _Class())
        item.start = max(lane.virtual_time, lane.finish.get(key, 0.0))
        lane.finish[key] = item.start + cost / weight
        _compact(lane)
        heapq.heappush(lane.heap, (item.start, item.serial, item))
        self._by_key.setdefault(key, []).append(item)
        self._size += 1
        if self._size <= self._max_items:
            return item, None
        leaving = self._most_expendable()
        self.remove(leaving)
        return item, leaving

    def pop(self) -> Item | None:
        """Who goes next."""
        for priority in sorted(self._classes):
            lane = self._classes[priority]
            while lane.heap:
                start, _, item = heapq.heappop(lane.heap)
                if item.queued:
                    lane.virtual_time = start
                    self._drop(item)
                    return item
                lane.gone -= 1
        return None

    def put_back(self, item: Item) -> None:
        """It was popped and could not be served: it stands again where it stood."""
        item.queued = True
        lane = self._classes.setdefault(item.priority, _Class())
        heapq.heappush(lane.heap, (item.start, item.serial, item))
        self._by_key.setdefault(item.key, []).append(item)
        self._size += 1

    def remove(self, item: Item) -> None:
        """It gave up, or had to leave. What it would have used is given back to its key."""
        if not item.queued:
            return
        self._drop(item)
        lane = self._classes.get(item.priority)
        if lane is not None:
            lane.gone += 1
            lane.finish[item.key] = lane.finish.get(item.key, 0.0) - item.cost / item.weight

    def _drop(self, item: Item) -> None:
        item.queued = False
        self._size -= 1
        mine = self._by_key[item.key]
        mine.remove(item)
        if not mine:
            del self._by_key[item.key]
        if self._size == 0:
            self._classes.clear()  # nobody waits: history no longer counts

    def _most_expendable(self) -> Item:
        lowest = max(item.priority for items in self._by_key.values() for item in items)

        def held(key: str) -> float:
            mine = [item for item in self._by_key[key] if item.priority == lowest]
            return len(mine) / mine[-1].weight if mine else 0.0

        key = max(self._by_key, key=held)
        return max((i for i in self._by_key[key] if i.priority == lowest), key=lambda item: item.serial)


def _compact(lane: _Class) -> None:
    """Those who left stay in the heap until they surface: when they are most of it, it is built anew."""
    if lane.gone > max(64, len(lane.heap) // 2):
        lane.heap = [entry for entry in lane.heap if entry[2].queued]
        lane.gone = 0
        heapq.heapify(lane.heap)
