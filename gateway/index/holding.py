"""What one worker holds, and whether anything is missing in between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import TypeAlias

from gateway.kv.parted import LOW, PartedKeys
from gateway.types import BlockKey

Gone: TypeAlias = tuple[int, int | None]
"""A key that is held no more, and the key before it."""
_ABSENT = -1
"""No key, and what no key comes before."""
UNKNOWN = BlockKey(1)
"""The key before a block of which nobody knows what comes before it. It is never held, so there is a hole
before that block, and matches look at every key."""


class Holding:
    """The blocks of one worker in one epoch. `bit` is its place in a node's value (`tree.py`).

    A *hole* is a key that is not held though one that follows it is. Engines free a prompt from its end, so
    there is hardly ever one, and where there is none whoever holds a block holds all before it: how much of a
    prompt that is can then be told from a few of its keys. So that a hole is noticed when it comes, the keys
    that none follows are known (`tips`), and how many follow where they are several (`forks`): that is a few
    for each prompt, not one for each block.
    """

    __slots__ = ("bit", "copies", "forks", "holes", "parents", "size", "tips")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.size = 0
        """Keys held."""
        self.parents: PartedKeys[int | None] = PartedKeys()
        """Every key held, and the key of the block before it; None at the beginning of a prompt."""
        self.copies: dict[int, int] = {}
        """Keys of which it holds more than one copy, and how many."""
        self.tips: set[int] = set()
        """Keys that none follows."""
        self.forks: dict[int, int] = {}
        """Keys that several follow, and how many do. One that is neither here nor a tip has one behind it."""
        self.holes: dict[int, int] = {}
        """Keys that are not held, and how many are that follow them."""

    def depth(self, keys: Sequence[int]) -> int:
        """How many leading `keys` of a prompt it holds."""
        held = self.parents
        if self.holes:
            return next((depth for depth, key in enumerate(keys) if key not in held), len(keys))
        if not keys or keys[-1] in held.parts[keys[-1] & LOW]:
            return len(keys)
        return bisect_left(keys, True, key=lambda key: key not in held)

    def missing(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """From where to where a prompt's `keys` are not held: mostly once, it goes on from what is."""
        if not self.holes:
            if not keys or keys[-1] in self.parents.parts[keys[-1] & LOW]:
                return []
            return [(self.depth(keys), len(keys))]
        runs: list[tuple[int, int]] = []
        start: int | None = None
        for place, key in enumerate(keys):
            if key in self.parents:
                if start is not None:
                    runs.append((start, place))
                    start = None
            elif start is None:
                start = place
        return runs if start is None else [*runs, (start, len(keys))]

    def gained(self, keys: Sequence[int], parent: int | None) -> None:
        """`keys`, which follow one another and `parent`, were put into `parents`; it held none of them."""
        self.size += len(keys)
        if parent is not None:
            self._followed(parent)
        last = keys[-1]
        if not self.holes:
            self.tips.add(last)
            return
        for key in keys:
            behind = self.holes.pop(key, 0) + (key != last)
            if behind > 1:
                self.forks[key] = behind
            elif not behind:
                self.tips.add(key)

    def lose(self, keys: Sequence[int]) -> list[Gone]:
        """It holds these no more, nor copies of them. Returns those that it held, and the key before each.
        Cheapest where each is followed by the one before it, as engines free them, or the other way round."""
        parts, copies, tips, forks = self.parents.parts, self.copies, self.tips, self.forks
        if len(keys) > 1 and self.parents.get(keys[1]) == keys[0]:
            keys = keys[::-1]
        gone: list[Gone] = []
        followed: int | None = None
        """By the last one that has gone; that this is one less was not noted yet."""
        for key in keys:
            parent = parts[key & LOW].pop(key, _ABSENT)
            if parent == _ABSENT:
                continue
            gone.append((key, parent))
            if copies:
                copies.pop(key, None)
            if key == followed:
                if key in forks:
                    self.holes[key] = forks.pop(key) - 1
            else:
                if followed is not None:
                    self._followed_less(followed)
                if key in tips:
                    tips.remove(key)
                else:
                    self.holes[key] = forks.pop(key, 1)
            followed = parent
        if followed is not None:
            self._followed_less(followed)
        self.size -= len(gone)
        return gone

    def shorten(self, tip: int, most: int, ends: Container[int]) -> list[Gone]:
        """It holds the end of a prompt no more: from `tip` back to where another goes on, to one of `ends`,
        or until `most` have gone. Returns what `lose` does."""
        parts, copies, forks = self.parents.parts, self.copies, self.forks
        gone: list[Gone] = []
        key = tip
        while True:
            parent = parts[key & LOW].pop(key)
            gone.append((key, parent))
            if copies:
                copies.pop(key, None)
            if parent is None or len(gone) == most or parent in forks or parent in ends:
                break
            if parent not in parts[parent & LOW]:
                break
            key = parent
        self.tips.remove(tip)
        if parent is not None:
            self._followed_less(parent)
        self.size -= len(gone)
        return gone

    def relink(self, key: int, parent: int) -> None:
        """`key`, which it holds, turns out to follow `parent`; it was not known to follow anything."""
        self.parents[key] = parent
        self._followed(parent)

    def drain(self, limit: int) -> list[Gone]:
        """Up to so many of its keys, whichever, which it holds no more, and the key before each. Once this
        was asked for, nothing else can be: what follows what is not kept."""
        for kept in (self.copies, self.tips, self.forks, self.holes):
            kept.clear()
        gone = [self.parents.popitem() for _ in range(min(limit, self.size))]
        self.size -= len(gone)
        return gone

    def _followed(self, parent: int) -> None:
        """By one key more."""
        if parent not in self.parents.parts[parent & LOW]:
            self.holes[parent] = self.holes.get(parent, 0) + 1
        elif parent in self.tips:
            self.tips.remove(parent)
        else:
            self.forks[parent] = self.forks.get(parent, 1) + 1

    def _followed_less(self, parent: int) -> None:
        """By one key less."""
        if parent not in self.parents.parts[parent & LOW]:
            _one_less(self.holes, parent, last=1)
        elif parent in self.forks:
            _one_less(self.forks, parent, last=2)
        else:
            self.tips.add(parent)


def _one_less(counts: dict[int, int], key: int, *, last: int) -> None:
    """Down to `last`, from where there is no count any more. Nor is there one where two prompts have a key in
    common and not what is before it, which a hash can be made to: of those nothing exact is known."""
    count = counts.get(key, last)
    if count > last:
        counts[key] = count - 1
    else:
        counts.pop(key, None)
