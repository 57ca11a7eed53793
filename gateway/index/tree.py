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
from collections.abc import Iterator, Mapping, Sequence

from gateway.index.holding import Gone, Holding
from gateway.kv.parted import LOW, PartedKeys

CHILD_BITS = 32
CHILDREN = (1 << CHILD_BITS) - 1
_SHARED_VALUES = 1 << 16


def holder_bits(value: int) -> Iterator[int]:
    """The holders' bits of a node's value, one at a time."""
    mask = value >> CHILD_BITS << CHILD_BITS
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


class Changes:
    """What was linked and unlinked, for one who looks at all links a few at a time: a link that is not in
    here was there before, and is there still."""

    __slots__ = ("linked", "unlinked")

    def __init__(self) -> None:
        self.linked: list[tuple[Sequence[int], int | None]] = []
        """Keys that follow one another, and the one before the first, as somebody said. Known links too."""
        self.unlinked: list[Sequence[Gone]] = []
        """Keys, each with the one before it, of which one holder less says so."""

    def __bool__(self) -> bool:
        return bool(self.linked or self.unlinked)

    def clear(self) -> None:
        self.linked.clear()
        self.unlinked.clear()


class BlockTree:
    """Nodes, their links and their order of use. `holdings` gives the holding of each bit that is in use."""

    def __init__(self, holdings: dict[int, Holding]) -> None:
        self.nodes: PartedKeys[int] = PartedKeys()
        self.size = 0
        """How many nodes there are, ghosts too."""
        self.ghosts: dict[int, int | None] = {}
        self.leaves: OrderedDict[int, int] = OrderedDict()
        self.holed = 0
        """The bits of the holdings that have a hole."""
        self.watchers: list[Changes] = []
        """Of those who want to know."""
        self._holdings = holdings
        self.used: dict[int, int] = {}
        """When an inner node was last the end of a match; leaves have theirs in `leaves`."""
        self._now = 0
        self._next: tuple[int, int] | None = None
        """The leaf to give up next, and its time of use, while a prefix is being given up from its end."""
        self._values: dict[int, int] = {}

    def load(
        self, holding: Holding, keys: Sequence[int], parent: int | None, copies: Mapping[int, int]
    ) -> None:
        """Of a snapshot: as `store`, but `holding` has one copy of each key now, or as many as `copies` says,
        and nothing is used by it."""
        self.store(holding, keys, parent, used=False)
        counts = holding.copies
        for key in keys if counts or copies else ():
            count = copies.get(key, 1)
            if count > 1:
                counts[key] = count
            else:
                counts.pop(key, None)

    def store(self, holding: Holding, keys: Sequence[int], parent: int | None, *, used: bool = True) -> None:
        """One more copy of each key for `holding`. Not `used` are those of a snapshot: old, who knows how."""
        if not keys:
            return
        for changes in self.watchers:
            changes.linked.append((keys, parent))
        nodes, parents, bit = self.nodes.parts, holding.parents.parts, holding.bit
        bit_and_child = self._shared(bit + 1)
        first, start, created = parent, 0, 0
        """From where on they are new to the holding, what is before that; how many are new to the tree."""
        fresh: dict[int, int] | None = None
        """The part of the node before, where that is new."""
        for place, key in enumerate(keys):
            at = key & LOW
            part = nodes[at]
            if key not in part:
                if fresh is not None:
                    fresh[parent] = bit_and_child  # type: ignore[index]
                elif parent is not None:
                    self._adopt(parent)
                part[key] = bit
                parents[at][key] = parent
                created += 1
                fresh = part
            elif key in parents[at]:
                fresh = None
                holding.copies[key] = holding.copies.get(key, 1) + 1
                if parents[at][key] != parent:
                    self._link(key, parent)
                if place > start:
                    holding.gained(keys[start:place], first)
                first, start = key, place + 1
            else:
                fresh = None
                known = self._link(key, parent)
                self.ghosts.pop(key, None)
                part[key] = self._shared(part[key] | bit)
                parents[at][key] = known
                if known != parent:  # it is no chain
                    if place > start:
                        holding.gained(keys[start:place], first)
                    first, start = known, place
            parent = key
        self.size += created
        if start < len(keys):
            holding.gained(keys[start:], first)
        self._note_holes(holding)
        if used:
            self.touch(keys[-1])
        elif not self.nodes[keys[-1]] & CHILDREN:
            self.leaves.setdefault(keys[-1], 0)

    def remove(self, holding: Holding, keys: Sequence[int]) -> list[Gone]:
        """One copy less of each key; keys that it does not hold are ignored. Returns those that it holds no
        more, and the key before each."""
        copies = holding.copies
        if copies and not copies.keys().isdisjoint(keys):
            last: list[int] = []
            for key in keys:
                if key not in copies:
                    last.append(key)
                elif copies[key] == 2:
                    del copies[key]
                else:
                    copies[key] -= 1
            keys = last
        return self.forget(holding, keys)

    def forget(self, holding: Holding, keys: Sequence[int]) -> list[Gone]:
        """All copies of each key go. Returns those that were held, and the key before each."""
        gone = holding.lose(keys)
        self.lost(holding, gone)
        return gone

    def lost(self, holding: Holding, gone: Sequence[Gone]) -> None:
        """`holding` has given these up. Cheapest where a key is followed by the one before it."""
        nodes, bit, used = self.nodes.parts, holding.bit, self.used
        for changes in self.watchers:
            changes.unlinked.append(gone)
        self._note_holes(holding)
        before_one, last, deleted = bit + 1, len(gone) - 1, 0
        going: int | None = None
        """Nobody else's, and without the key before it in `gone` a leaf; it was not put among them."""
        for i, (key, parent) in enumerate(gone):
            part = nodes[key & LOW]
            if key != going:
                if part[key] != bit:
                    self._lose(key, parent, bit)
                    continue
                self.leaves.pop(key, None)
            del part[key]
            deleted += 1
            if parent is None:
                continue
            if i < last and gone[i + 1][0] == parent and nodes[parent & LOW][parent] == before_one:
                going = parent
                if used:
                    used.pop(parent, None)
            else:
                self._leave(parent)
        self.size -= deleted

    def drain(self, holding: Holding, limit: int) -> int:
        """Forgets up to `limit` keys of `holding`, which is matched no more; returns how many."""
        gone = holding.drain(limit)
        for changes in self.watchers:
            changes.unlinked.append(gone)
        self._note_holes(holding)
        for key, parent in gone:
            self._lose(key, parent, holding.bit)
        return len(gone)

    def touch(self, key: int) -> None:
        """`key` was used, and with it all before it."""
        self._now += 1
        value = self.nodes.parts[key & LOW].get(key)
        if value is None:
            return
        if value & CHILDREN:
            self.used[key] = self._now
        else:
            self.leaves[key] = self._now
            self.leaves.move_to_end(key)

    def give_up(self) -> tuple[int, int | None, int]:
        """Drops the leaf that was used least recently. Returns it, the key before it, and the bits of those
        who held it."""
        key, used = self._pick()
        parent, holders = self._parent(key), self.nodes[key]
        for bit in holder_bits(holders):
            self.forget(self._holdings[bit], (key,))
        self._next = None
        # a parent that became a leaf by this carries the time of its own last use
        if parent is not None and self.leaves.get(parent, used + 1) <= used:
            self.leaves[parent] = used
            self._next = parent, used
        return key, parent, holders

    def _pick(self) -> tuple[int, int]:
        if self._next is not None and self.leaves.get(self._next[0]) == self._next[1]:
            return self._next
        key = next(iter(self.leaves))
        return key, self.leaves[key]

    # links

    def _adopt(self, parent: int) -> None:
        """`parent` has one child more."""
        part = self.nodes.parts[parent & LOW]
        value = part.get(parent)
        if value is None:
            part[parent] = 1
            self.size += 1
            self.ghosts[parent] = None
            return
        if not value & CHILDREN:
            self.leaves.pop(parent, None)
        part[parent] = self._shared(value + 1)

    def _link(self, key: int, parent: int | None) -> int | None:
        """The parent of a node that exists. A chained key has one parent only, but it is learned late where
        the node came without: a ghost, a snapshot without links."""
        known = self._parent(key)
        if known is None and parent is not None:
            known = parent
            self._adopt(parent)
            for bit in holder_bits(self.nodes[key]):
                self._holdings[bit].relink(key, parent)
                self._note_holes(self._holdings[bit])
        elif known != parent and parent is not None:
            self.touch(parent)  # not its parent after all: a leaf, unless it has other children
        return known

    def _parent(self, key: int) -> int | None:
        for bit in holder_bits(self.nodes[key]):
            return self._holdings[bit].parents[key]
        return self.ghosts[key]

    def _lose(self, key: int, parent: int | None, bit: int) -> None:
        """The holding of `bit` has dropped `key`, whose parent is `parent`."""
        part = self.nodes.parts[key & LOW]
        value = part[key] ^ bit
        if value:
            part[key] = self._shared(value)
            if value <= CHILDREN:
                self.ghosts[key] = parent
        else:
            self._bury(key, parent)

    def _bury(self, key: int, parent: int | None) -> None:
        """Takes out a node without holders and children, and each ghost that was there for it alone."""
        del self.nodes[key]
        self.size -= 1
        self.leaves.pop(key, None)
        if parent is not None:
            self._leave(parent)

    def _leave(self, parent: int) -> None:
        """It has one child less."""
        before: int | None = parent
        while before is not None:
            part = self.nodes.parts[before & LOW]
            value = part[before] - 1
            if value:
                part[before] = self._shared(value)
                if not value & CHILDREN:
                    self.leaves[before] = self.used.pop(before, 0)
                return
            del part[before]
            self.size -= 1
            self.used.pop(before, None)
            key, before = before, self.ghosts.pop(before)
            for changes in self.watchers:
                changes.unlinked.append(((key, before),))

    def _note_holes(self, holding: Holding) -> None:
        if holding.holes:
            self.holed |= holding.bit
        elif self.holed & holding.bit:
            self.holed ^= holding.bit

    def _shared(self, value: int) -> int:
        values = self._values
        if len(values) > _SHARED_VALUES:
            values.clear()
        return values.setdefault(value, value)
