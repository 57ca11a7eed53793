"""The blocks of all workers as a tree in one flat dict, and which of its leaves to give up first.

A node is ``holders << 32 | children``: one bit for each holding that has the block, and how many nodes name
it as their parent. Walking a prompt is then a lookup and an AND for each block; equal values are one shared
int, so that a node costs its key and a dict entry. Links to parents live with the holdings.

A node that nobody holds but that has children stays as a *ghost*, so that the counts are exact whatever order
blocks come and go in. Leaves are kept in order of use. When one is given up, its parent, if it was not used
later, is next: old prefixes vanish from their ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

CHILD_BITS = 32
CHILDREN = (1 << CHILD_BITS) - 1
_SHARED_VALUES = 1 << 16


class Holding:
    """What one worker holds in one epoch. `bit` is its place in a node's value."""

    __slots__ = ("bit", "copies", "parents")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.parents: dict[int, int | None] = {}
        """Every key held, and the key of the block before it."""
        self.copies: dict[int, int] = {}
        """Keys of which it holds more than one copy, and how many."""


def holder_bits(value: int) -> Iterator[int]:
    """The holders' bits of a node's value, one at a time."""
    mask = value >> CHILD_BITS << CHILD_BITS
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


class BlockTree:
    """Nodes, their links and their order of use. `holdings` gives the holding of each bit that is in use."""

    def __init__(self, holdings: dict[int, Holding]) -> None:
        self.nodes: dict[int, int] = {}
        self.ghosts: dict[int, int | None] = {}
        self.leaves: OrderedDict[int, int] = OrderedDict()
        self._holdings = holdings
        self._used: dict[int, int] = {}
        """When an inner node was last the end of a match; leaves have theirs in `leaves`."""
        self._now = 0
        self._next: tuple[int, int] | None = None
        """The leaf to give up next, and its time of use, while a prefix is being given up from its end."""
        self._values: dict[int, int] = {}

    def load(self, holding: Holding, records: Sequence[tuple[int, int, int]], same: dict[int, int]) -> None:
        """Of a snapshot, in no order: key, key before it or 0, copies that `holding` has of it. They are not
        used by it: when they were, nobody knows any more. Equal keys become one int, kept in `same`."""
        nodes, parents, leaves, bit = self.nodes, holding.parents, self.leaves, holding.bit
        ghosts, shared, one = self.ghosts, self._shared, same.setdefault
        for number, before, copies in records:
            key = one(number, number)
            parent = one(before, before) if before else None
            if copies == 1 and key not in nodes:  # the hot path: all of a new replica's first worker
                nodes[key] = bit
                parents[key] = parent
                leaves[key] = 0
                if parent is not None:
                    self._adopt(parent)
            elif copies == 1 and ghosts.get(key, key) is None:  # a child of it came first
                del ghosts[key]
                nodes[key] = shared(nodes[key] | bit)
                parents[key] = parent
                if parent is not None:
                    self._adopt(parent)
            else:
                self._set_copies(holding, key, parent, copies)

    def _set_copies(self, holding: Holding, key: int, parent: int | None, copies: int) -> None:
        if not copies:
            self.forget(holding, (key,))
            return
        if key not in holding.parents:
            self.store(holding, (key,), parent, used=False)
        elif holding.parents[key] != parent:
            self._link(key, parent)
        if copies > 1:
            holding.copies[key] = copies
        else:
            holding.copies.pop(key, None)

    def store(self, holding: Holding, keys: Sequence[int], parent: int | None, *, used: bool = True) -> None:
        """One more copy of each key for `holding`. Not `used` are those of a snapshot: old, in no order."""
        nodes, parents, bit = self.nodes, holding.parents, holding.bit
        bit_and_child = self._shared(bit + 1)
        fresh = False
        for key in keys:
            if key not in nodes:
                if fresh:
                    nodes[parent] = bit_and_child  # type: ignore[index]
                elif parent is not None:
                    self._adopt(parent)
                nodes[key] = bit
                parents[key] = parent
                fresh = True
            elif key in parents:
                fresh = False
                holding.copies[key] = holding.copies.get(key, 1) + 1
                if parents[key] != parent:
                    self._link(key, parent)
            else:
                fresh = False
                parents[key] = self._link(key, parent)
                self.ghosts.pop(key, None)
                nodes[key] = self._shared(nodes[key] | bit)
            parent = key
        if keys and used:
            self.touch(keys[-1])
        elif keys and not nodes[keys[-1]] & CHILDREN:
            self.leaves.setdefault(keys[-1], 0)

    def remove(self, holding: Holding, keys: Sequence[int]) -> None:
        """One copy less of each key; keys that it does not hold are ignored."""
        parents, copies = holding.parents, holding.copies
        for key in keys:
            if key in copies:
                copies[key] -= 1
                if copies[key] == 1:
                    del copies[key]
            elif key in parents:
                self._lose(key, parents.pop(key), holding.bit)

    def forget(self, holding: Holding, keys: Sequence[int]) -> None:
        """All copies of each key go. Cheapest where a key is followed by the one before it."""
        nodes, parents, copies, bit = self.nodes, holding.parents, holding.copies, holding.bit
        used, last = self._used, len(keys) - 1
        going: int | None = None
        """Nobody else's, and without the key before it in `keys` a leaf; it was not put among them."""
        for i, key in enumerate(keys):
            if key not in parents:
                continue
            parent = parents.pop(key)
            if copies:
                copies.pop(key, None)
            if key != going:
                if nodes[key] != bit:
                    self._lose(key, parent, bit)
                    continue
                self.leaves.pop(key, None)
            del nodes[key]
            if parent is None:
                continue
            if i < last and keys[i + 1] == parent and nodes[parent] == bit + 1:
                going = parent
                if used:
                    used.pop(parent, None)
            else:
                self._leave(parent)

    def drain(self, holding: Holding, limit: int) -> int:
        """Forgets up to `limit` keys of `holding`, latest first; returns how many."""
        parents = holding.parents
        holding.copies.clear()
        done = min(limit, len(parents))
        for _ in range(done):
            key, parent = parents.popitem()
            self._lose(key, parent, holding.bit)
        return done

    def touch(self, key: int) -> None:
        """`key` was used, and with it all before it."""
        self._now += 1
        value = self.nodes.get(key)
        if value is None:
            return
        if value & CHILDREN:
            self._used[key] = self._now
        else:
            self.leaves[key] = self._now
            self.leaves.move_to_end(key)

    def give_up(self) -> tuple[int, int]:
        """Drops the leaf that was used least recently. Returns it, and the bits of those who held it."""
        key, used = self._pick()
        parent, holders = self._parent(key), self.nodes[key]
        for bit in holder_bits(holders):
            self.forget(self._holdings[bit], (key,))
        self._next = None
        # a parent that became a leaf by this carries the time of its own last use
        if parent is not None and self.leaves.get(parent, used + 1) <= used:
            self.leaves[parent] = used
            self._next = parent, used
        return key, holders

    def _pick(self) -> tuple[int, int]:
        if self._next is not None and self.leaves.get(self._next[0]) == self._next[1]:
            return self._next
        key = next(iter(self.leaves))
        return key, self.leaves[key]

    def compact(self) -> None:
        """Gives back what a snapshot, whose blocks come in no order, took for a while only."""
        self.leaves = OrderedDict(self.leaves)
        self.ghosts = dict(self.ghosts)

    # links

    def _adopt(self, parent: int) -> None:
        """`parent` has one child more."""
        value = self.nodes.get(parent)
        if value is None:
            self.nodes[parent] = 1
            self.ghosts[parent] = None
            return
        if not value & CHILDREN:
            self.leaves.pop(parent, None)
        self.nodes[parent] = self._shared(value + 1)

    def _link(self, key: int, parent: int | None) -> int | None:
        """The parent of a node that exists. A chained key has one parent only, but it is learned late where
        the node came without: a ghost, a snapshot without links."""
        known = self._parent(key)
        if known is None and parent is not None:
            known = parent
            self._adopt(parent)
            for bit in holder_bits(self.nodes[key]):
                self._holdings[bit].parents[key] = parent
        elif known != parent and parent is not None:
            self.touch(parent)  # not its parent after all: a leaf, unless it has other children
        return known

    def _parent(self, key: int) -> int | None:
        for bit in holder_bits(self.nodes[key]):
            return self._holdings[bit].parents[key]
        return self.ghosts[key]

    def _lose(self, key: int, parent: int | None, bit: int) -> None:
        """The holding of `bit` has dropped `key`, whose parent is `parent`."""
        value = self.nodes[key] ^ bit
        if value:
            self.nodes[key] = self._shared(value)
            if value <= CHILDREN:
                self.ghosts[key] = parent
        else:
            self._bury(key, parent)

    def _bury(self, key: int, parent: int | None) -> None:
        """Takes out a node without holders and children, and each ghost that was there for it alone."""
        del self.nodes[key]
        self.leaves.pop(key, None)
        if parent is not None:
            self._leave(parent)

    def _leave(self, parent: int) -> None:
        """It has one child less."""
        nodes = self.nodes
        before: int | None = parent
        while before is not None:
            value = nodes[before] - 1
            if value:
                nodes[before] = self._shared(value)
                if not value & CHILDREN:
                    self.leaves[before] = self._used.pop(before, 0)
                return
            del nodes[before]
            self._used.pop(before, None)
            before = self.ghosts.pop(before)

    def _shared(self, value: int) -> int:
        values = self._values
        if len(values) > _SHARED_VALUES:
            values.clear()
        return values.setdefault(value, value)

    # proof

    def check_integrity(self) -> None:
        """Recomputes every node from the holdings. Raises AssertionError where they differ."""
        expected: dict[int, int] = {}
        links: dict[int, int | None] = dict(self.ghosts)
        for bit, holding in self._holdings.items():
            for key, parent in holding.parents.items():
                expected[key] = expected.get(key, 0) | bit
                _require(links.setdefault(key, parent) == parent, f"two parents of {key:x}")
            _require(all(n > 1 for n in holding.copies.values()), "a copy that is the only one")
            _require(holding.copies.keys() <= holding.parents.keys(), "copies of a block that is not held")
        _require(not expected.keys() & self.ghosts.keys(), "a ghost that is held")
        for parent in links.values():
            if parent is not None:
                expected[parent] = expected.get(parent, 0) + 1
        _require(expected == self.nodes, "nodes differ from what is held")
        leaves = {key for key, value in self.nodes.items() if not value & CHILDREN}
        _require(leaves == self.leaves.keys(), "leaves differ from the nodes without children")
        _require(self._used.keys() <= self.nodes.keys() - leaves, "times of use of nodes that are gone")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
