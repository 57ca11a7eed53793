"""Large maps in parts, so that no write to one takes long.

Python makes a dict anew when it has been written to and deleted from for long enough, at once: a tenth of a
second for a million blocks, in which nothing else is done. In parts that is some milliseconds at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

PARTS = 16
"""More would be shorter, and the blocks of one prompt farther apart in memory."""
LOW = PARTS - 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PartedMap(Generic[K, V]):
    """`parts[hash(key) & LOW]` is the dict that a key belongs to: where many keys are gone through that is
    written out, for a call of a method costs more than the look-up."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[dict[K, V]] = [{} for _ in range(PARTS)]

    def part(self, key: K) -> dict[K, V]:
        return self.parts[hash(key) & LOW]

    def __contains__(self, key: K) -> bool:
        return key in self.part(key)

    def __getitem__(self, key: K) -> V:
        return self.part(key)[key]

    def __setitem__(self, key: K, value: V) -> None:
        self.part(key)[key] = value

    def __delitem__(self, key: K) -> None:
        del self.part(key)[key]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[K]:
        for part in self.parts:
            yield from part

    def get(self, key: K) -> V | None:
        return self.part(key).get(key)

    def items(self) -> Iterator[tuple[K, V]]:
        for part in self.parts:
            yield from part.items()

    def values(self) -> Iterator[V]:
        for part in self.parts:
            yield from part.values()

    def popitem(self) -> tuple[K, V]:
        """Any. Raises KeyError where there is none."""
        for part in self.parts:
            if part:
                return part.popitem()
        raise KeyError("empty")

    def clear(self) -> None:
        for part in self.parts:
            part.clear()


class PartedKeys(PartedMap[int, V]):
    """By block keys, whose low bits are as good as random: it is `parts[key & LOW]`, without a call."""

    __slots__ = ()

    def part(self, key: int) -> dict[int, V]:
        return self.parts[key & LOW]

    def __contains__(self, key: int) -> bool:
        return key in self.parts[key & LOW]
