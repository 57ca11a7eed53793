"""Does an index contradict itself? All of it is computed anew, in steps, between which it is written to.

What can be told of one block is looked at in one step: who holds it, what comes before it, whether it is a
leaf. How many follow it can't, for nothing leads from a block to those. So the blocks that may follow each
are noted first, and whatever is linked from then on is noted too (`tree.Changes`). Of those, the ones that do
follow it are counted in the very step in which the counts are compared: neither is a change between two steps
taken for an error, nor is one overlooked because of it. What came after the beginning may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from gateway.index.holding import Holding
from gateway.index.tree import CHILD_BITS, CHILDREN, BlockTree, Changes, holder_bits
from gateway.kv.parted import LOW, PartedKeys

STEP = 64
"""Blocks that are looked at in one step: a fraction of a millisecond."""
MANY = 512
"""Where more blocks follow one, as they do a system prompt, they are counted in several steps."""
_NOT = -1


def inspect_tree(
    tree: BlockTree, holdings: Mapping[int, Holding], matched: Callable[[], int]
) -> Iterator[None]:
    """The steps; to be closed where they are not gone through. `matched` gives the bits of the holdings that
    are matched: the others are on their way out. Raises AssertionError where something is wrong."""
    changes = Changes()
    tree.watchers.append(changes)
    try:
        yield from _Inspection(tree, holdings, matched, changes).steps()
    finally:
        tree.watchers.remove(changes)


class _Inspection:
    def __init__(
        self, tree: BlockTree, holdings: Mapping[int, Holding], matched: Callable[[], int], changes: Changes
    ) -> None:
        self._tree = tree
        self._holdings = holdings
        self._matched = matched
        self._changes = changes
        self._behind = PartedKeys[int | set[int]]()
        """By key, the one or those that may follow it."""
        self._counting: _Count | None = None
        """What is counted in several steps."""

    def steps(self) -> Iterator[None]:
        for some in self._each(self._tree.nodes):
            for key in some:
                self._note_what_it_follows(key)
            yield
        for some in self._each(self._tree.nodes):
            for key in some:
                behind = self._behind.parts[key & LOW].get(key)
                if isinstance(behind, set):
                    yield from self._followed_by_several(key, behind)
                else:
                    self._followed_by_one(key, behind)
            yield
        for bit, holding in list(self._holdings.items()):
            yield from self._of_holding(bit, holding)
        yield from self._of_tree()
        for part in self._behind.parts:  # a million entries take their time to go
            part.clear()
            yield

    def _each(self, *maps: Iterable[int]) -> Iterator[list[int]]:
        """Their keys, some at a time, of which there may be some that have gone."""
        for one in maps:
            for part in one.parts if isinstance(one, PartedKeys) else (one,):
                keys = iter(list(part))
                while some := list(islice(keys, STEP)):
                    self._hear()
                    yield some

    def _hear(self) -> None:
        """What was written since the last step."""
        changes, counting = self._changes, self._counting
        if not changes:
            return
        for keys, first in changes.linked:
            parent = first
            for key in keys:
                if parent is not None:
                    self._note(parent, key)
                    if counting is not None and parent == counting.key:
                        counting.look(key)
                parent = key
        if counting is not None:
            for gone in changes.unlinked:
                for key, before in gone:
                    if before == counting.key:
                        counting.look(key)
        changes.clear()

    def _note_what_it_follows(self, key: int) -> None:
        parts, at = self._tree.nodes.parts, key & LOW
        if key not in parts[at]:
            return
        parent = self._parent(key, parts[at][key])
        if parent is not None:
            if parent not in parts[parent & LOW]:
                raise _wrong("what comes before it is not known", key)
            self._note(parent, key)

    def _note(self, parent: int, key: int) -> None:
        part = self._behind.parts[parent & LOW]
        known = part.setdefault(parent, key)
        if isinstance(known, set):
            known.add(key)
        elif known != key:
            part[parent] = {known, key}

    def _parent(self, key: int, value: int) -> int | None:
        """What comes before a node, in the words of all who hold it."""
        ghosts, at, holders = self._tree.ghosts, key & LOW, value >> CHILD_BITS << CHILD_BITS
        if (key in ghosts) == (holders > 0):
            raise _wrong("a ghost that is held, or a block that nobody holds", key)
        if not holders:
            return ghosts[key]
        found: int | None = _NOT
        # mostly it is one
        for bit in (holders,) if holders in self._holdings else holder_bits(holders):
            holding = self._holdings.get(bit)
            parent = _NOT if holding is None else holding.parents.parts[at].get(key, _NOT)
            if parent == _NOT:
                raise _wrong("who is said to hold it does not", key)
            if found not in (_NOT, parent):
                raise _wrong("two parents", key)
            found = parent
        return found

    def follows(self, key: int, parent: int) -> int:
        """The bits of those who hold `key`, where it follows `parent` now; _NOT where it does not."""
        value = self._tree.nodes.parts[key & LOW].get(key)
        if value is None or self._parent(key, value) != parent:
            return _NOT
        return value >> CHILD_BITS << CHILD_BITS

    def _followed_by_one(self, key: int, other: int | None) -> None:
        """Or by none."""
        value = self._tree.nodes.parts[key & LOW].get(key)
        if value is None:
            return
        holders = _NOT if other is None else self.follows(other, key)
        if holders == _NOT:
            self._compare(key, value, 0, {})
        else:
            self._compare(key, value, 1, dict.fromkeys(self._bits(holders), 1))

    def _followed_by_several(self, key: int, others: set[int]) -> Iterator[None]:
        count = _Count(key, self.follows)
        if len(others) > MANY:
            self._counting, others = count, set(others)  # more may come meanwhile
        for number, other in enumerate(others, 1):
            count.look(other)
            if self._counting is not None and not number % STEP:
                yield
                self._hear()
        self._counting = None
        value = self._tree.nodes.get(key)
        if value is not None:
            self._compare(key, value, count.total, count.of)

    def _compare(self, key: int, value: int, total: int, of: Mapping[int, int]) -> None:
        """So many follow it, `of` some holdings so many, by their bits."""
        tree, children = self._tree, value & CHILDREN
        if children != total:
            raise _wrong(f"{total} follow it, and {children} are counted", key)
        if (key in tree.leaves) == (total > 0):
            raise _wrong("a leaf that is not known as one, or none that is", key)
        holders, matched = value ^ children, self._matched()
        for bit in self._bits(holders & matched):
            holding, own = self._holdings[bit], of.get(bit, 0)
            if (key in holding.tips) == (own > 0) or holding.forks.get(key, 0) != (own if own > 1 else 0):
                raise _wrong("what follows it among a worker's blocks is mixed up", key)
            if key in holding.holes:
                raise _wrong("a hole that is held", key)
        for bit, own in of.items():
            if not bit & holders and bit & matched and own != self._holdings[bit].holes.get(key, 0):
                raise _wrong("a hole that is not known as one", key)

    def _bits(self, mask: int) -> Iterable[int]:
        return (mask,) if mask in self._holdings else holder_bits(mask)

    def _of_holding(self, bit: int, holding: Holding) -> Iterator[None]:
        """What it has of blocks, and their nodes may not."""
        nodes = self._tree.nodes.parts
        for some in self._each(holding.parents):
            if self._holdings.get(bit) is not holding:
                return  # it was on its way out, and has gone
            for key in some:
                if key in holding.parents and not nodes[key & LOW].get(key, 0) & bit:
                    raise _wrong("held, and its node does not say so", key)
            yield
        for some in self._each(holding.tips, holding.forks, holding.copies, holding.holes):
            if not self._matched() & bit or self._holdings.get(bit) is not holding:
                return
            for key in some:
                self._of_one_held(bit, holding, key)
            yield
        if holding.size != len(holding.parents):
            raise _wrong("the blocks of a worker are miscounted", holding.size)

    def _of_one_held(self, bit: int, holding: Holding, key: int) -> None:
        known = key in holding.tips or key in holding.forks or key in holding.copies
        if known and key not in holding.parents:
            raise _wrong("not held, and known", key)
        if holding.copies.get(key, 2) < 2:
            raise _wrong("known for its copies, of which there is one", key)
        if key in holding.holes:
            behind = self._behind.get(key)
            others = behind if isinstance(behind, set) else () if behind is None else (behind,)
            if not any((holders := self.follows(other, key)) > 0 and holders & bit for other in others):
                raise _wrong("a hole that nothing follows", key)

    def _of_tree(self) -> Iterator[None]:
        """What it knows of blocks, and there may be none."""
        tree = self._tree
        for some in self._each(tree.leaves, tree.ghosts, tree.used):
            for key in some:
                value = tree.nodes.get(key)
                if value is None:
                    if key in tree.leaves or key in tree.ghosts or key in tree.used:
                        raise _wrong("gone, and known", key)
                elif key in tree.used and not value & CHILDREN:
                    raise _wrong("a leaf with a second time of use", key)
            yield
        if len(tree.nodes) != tree.size:
            raise _wrong("all blocks are miscounted", tree.size)


class _Count:
    """How many blocks follow `key`: in all, and of those that each holding has. One that is looked at again
    counts as it is then."""

    def __init__(self, key: int, follows: Callable[[int, int], int]) -> None:
        self.key = key
        self.total = 0
        self.of: dict[int, int] = {}
        """By the holding's bit."""
        self._follows = follows
        self._seen: dict[int, int] = {}

    def look(self, other: int) -> None:
        before, now = self._seen.get(other, _NOT), self._follows(other, self.key)
        if before == now:
            return
        self._seen[other] = now
        for holders, more in ((before, -1), (now, 1)):
            if holders != _NOT:
                self.total += more
                for bit in holder_bits(holders):
                    self.of[bit] = self.of.get(bit, 0) + more


def _wrong(what: str, key: int) -> AssertionError:
    return AssertionError(f"{what}: {key:x}")
