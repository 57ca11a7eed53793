"""What an engine without events probably holds: the blocks placed on it last, up to its real capacity."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import repeat


class CapacityLru:
    """Keys in the order in which a paged engine would evict them. `capacity` is in blocks of ours.

    An engine frees a finished prompt from its end, so that of one prompt the last block goes first. Each key
    carries how many prompts that came with it were not turned away.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._order: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def place(self, keys: Sequence[int]) -> list[int]:
        """Puts `keys` last; returns those that it pushed out."""
        order, last_first = self._order, list(reversed(keys))
        prompts = map(order.pop, last_first, repeat(0))
        order.update(zip(last_first, [n + 1 for n in prompts], strict=True))  # which puts them last
        return [order.popitem(last=False)[0] for _ in range(len(order) - self.capacity)]

    def retract(self, keys: Iterable[int]) -> list[int]:
        """A prompt was turned away: returns those of its `keys` that no other prompt brought here."""
        order, gone = self._order, []
        for key in keys:
            prompts = order.get(key, 0)
            if prompts > 1:
                order[key] = prompts - 1
            elif prompts:
                del order[key]
                gone.append(key)
        return gone

    def drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._order.pop(key, None)
