"""One engine's books: from its own names of blocks to our keys, copy by copy.

Pure and synchronous: batches in, changes out, in order. An engine's hashes are opaque; the token ids that a
store carries are hashed anew, chained from the parent's key. What can't be placed for want of its parent
waits aside. Engines with hybrid K/V caches report every group of layers; what a prefix match needs first is
full attention, so that the first full-attention group counts and the others do not.

``kv_cache_report_mode: full`` makes vLLM send stores again without a new copy behind them, and unmarked: such
a block is counted once too often here, and only feedback takes it out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import cast

from gateway.events.ends import end_keys
from gateway.events.ledger_state import BlockEntry, Journal, LedgerStats, WholeBooks
from gateway.events.scope import media_extras, root_scope
from gateway.events.tiers import Tiers
from gateway.events.waiting import Waiting, WaitingRoom
from gateway.index.changes import Change, Cleared, Removed, Stored
from gateway.kv.events import GPU, BlockRemoved, BlockStored, EventBatch
from gateway.kv.keys import BLOCK_SIZE, block_keys, pack_tokens, root_key
from gateway.kv.parted import LOW, PartedMap
from gateway.types import BlockKey, EngineHash

_NONE_GONE: frozenset[int] = frozenset()
FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
DEFAULT_MAX_WAITING = 65_536
DEFAULT_MAX_TIER_BLOCKS = 1_000_000


class Ledger:
    """`model` is the engine's base model name, `block_size` the fleet's unit in tokens."""

    def __init__(
        self,
        model: str,
        *,
        block_size: int = BLOCK_SIZE,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_tier_blocks: int = DEFAULT_MAX_TIER_BLOCKS,
        journal: bool = False,
    ) -> None:
        """With a `journal`, `take_journal` tells what changed in the books since it was last asked."""
        self.unsupported = ""
        """Why this engine's blocks can't be indexed, in words for a person; empty while they can."""
        self.model = model
        self.block_size = block_size
        self._stride = 0
        self.group: int | None = None
        """The K/V group that counts; None until one was chosen."""
        self._last: PartedMap[EngineHash, BlockKey] = PartedMap()
        """Engine block → our key of its last unit."""
        self._units: dict[EngineHash, tuple[BlockKey, ...]] = {}
        """All our keys of an engine block, where it has more than one: its units, and before them its end."""
        self._copies: dict[EngineHash, int] = {}
        """Copies on the GPU where they are not one: more, or none (a slower tier holds the block)."""
        self._waiting = WaitingRoom(max_waiting)
        self._tiers = Tiers(max_tier_blocks)
        self._touched: set[EngineHash] | None = set() if journal else None
        """Engine blocks whose entries may be others than the journal last told."""
        if journal:
            self._waiting.touched, self._tiers.touched = set(), set()
        self._rejected = self._foreign_groups = self._unknown_removals = 0

    def __repr__(self) -> str:
        return f"<Ledger {self.model}: {len(self._last)} blocks, {len(self._waiting)} waiting>"

    def __len__(self) -> int:
        """Engine blocks that it can name."""
        return len(self._last)

    @property
    def stride(self) -> int:
        """How many of our blocks are one of the engine's; 0 until it has stored one."""
        return self._stride

    def apply(self, batch: EventBatch) -> list[Change]:
        """What a batch changes, in order. Events that make no sense are counted and left out."""
        changes: list[Change] = []
        for kind, events in groupby(batch.events, type):
            if kind is BlockRemoved:  # an engine under load says so block by block
                if removed := self._remove(cast("Iterator[BlockRemoved]", events)):
                    changes.append(Removed(tuple(removed)))
                continue
            for event in events:
                if isinstance(event, BlockStored):
                    self._store(event, changes)
                else:
                    changes.append(self._clear())
        return changes

    def reset(self) -> list[Change]:
        """A new epoch: all that was known is void."""
        self._last.clear()
        self._units.clear()
        self._copies.clear()
        self._waiting.clear()
        self._tiers.clear()
        self._stride, self.group, self.unsupported = 0, None, ""
        self._touch_all()
        return [Cleared()]

    def stats(self) -> LedgerStats:
        return LedgerStats(
            blocks=len(self._last),
            waiting=len(self._waiting),
            dropped=self._waiting.dropped,
            rejected=self._rejected,
            foreign_groups=self._foreign_groups,
            unknown_removals=self._unknown_removals,
            tiers=self._tiers.sizes(),
            unresolved=sum(block not in self._last for block in self._tiers),
        )

    # for a successor

    def resume(self, stride: int, group: int | None) -> None:
        """Goes on with the books of another ledger: these two of its figures first, then what it knew, in
        pieces (`recall`…), each as it is now. An entry that is recalled twice counts once."""
        self.reset()
        self._stride, self.group = stride, group
        self.take_journal()  # what is taken over is known to whoever kept it

    def recall(self, block: EngineHash, keys: tuple[BlockKey, ...], copies: int) -> None:
        self._last[block] = keys[-1]
        if len(keys) > 1:
            self._units[block] = keys
        if copies != 1:
            self._copies[block] = copies

    def recall_waiting(self, waiting: Waiting, number: int) -> None:
        """In the order of their numbers."""
        self._waiting.recall(waiting, number)

    def recall_tier(self, medium: str, block: EngineHash, copies: int) -> None:
        self._tiers.recall(medium, block, copies)

    def holdings(self) -> Iterator[tuple[BlockKey, int]]:
        """Every key held on the GPU, with its copies; a key of several engine blocks comes several times."""
        for block, last in self._last.items():
            copies = self._copies.get(block, 1)
            if copies:
                for key in self._units.get(block) or (last,):
                    yield key, copies

    # for a writer, who keeps a copy of the books elsewhere

    def take_journal(self) -> Journal:
        """What changed since the last call. After a Cleared among the changes it is all that is left."""
        touched, waiting, tiers = self._touched or set(), self._waiting.touched, self._tiers.touched
        journal = Journal(
            blocks={block: self._entry(block) for block in touched},
            waiting={number: self._waiting.get(number) for number in waiting or ()},
            tiers={place: self._tiers.copies(*place) for place in tiers or ()},
        )
        for collection in (touched, waiting, tiers):
            if collection is not None:
                collection.clear()
        return journal

    def _entry(self, block: EngineHash) -> BlockEntry | None:
        last = self._last.get(block)
        if last is None:
            return None
        return BlockEntry(self._copies.get(block, 1), self._units.get(block) or (last,))

    def _touch(self, blocks: Iterable[EngineHash]) -> None:
        if self._touched is not None:
            self._touched.update(blocks)

    def _touch_all(self) -> None:
        """The copy elsewhere was emptied: the next journal is whole."""
        if self._touched is not None:
            self._touched = set(self._last)
            self._waiting.touched = set()
            self._tiers.touched = set(self._tiers.places())

    def whole(self) -> WholeBooks:
        """All of it, for a copy elsewhere that is lost. The journal begins anew behind it."""
        self.take_journal()
        return WholeBooks(
            dict(self._last.items()),
            dict(self._units),
            dict(self._copies),
            self._waiting.copy(),
            self._tiers.copy(),
        )

    # removals

    def _remove(self, events: Iterable[BlockRemoved]) -> list[BlockKey]:
        """The keys of which they take a copy."""
        removed: list[BlockKey] = []
        last, copies, touched = self._last.parts, self._copies, self._touched
        simple = self._stride == 1 and not self._tiers and not self._units
        for event in events:
            if event.medium != GPU and not _on_gpu(event):
                for block in self._tiers.removed(event.medium or GPU, event.block_hashes):
                    self._forget_if_unused(block)
                continue
            if not self._counts(event):
                continue
            if touched is not None:
                touched.update(event.block_hashes)
            for block in event.block_hashes:
                part = last[hash(block) & LOW]
                if simple and block in part and block not in copies:  # the hot path
                    removed.append(part.pop(block))
                else:
                    self._remove_one(block, removed)
        return removed

    def _remove_one(self, block: EngineHash, removed: list[BlockKey]) -> None:
        key, copies = self._last.get(block), self._copies.get(block, 1)
        if key is None or copies == 0:
            if not self._waiting.remove(block):
                self._unknown_removals += 1
            return
        removed.extend(self._units.get(block) or (key,))
        self._set_copies(block, copies - 1)

    def _set_copies(self, block: EngineHash, copies: int) -> None:
        if copies == 1:
            self._copies.pop(block, None)
        else:
            self._copies[block] = copies
        if copies == 0:
            self._forget_if_unused(block)

    def _forget_if_unused(self, block: EngineHash) -> None:
        if self._copies.get(block) == 0 and block not in self._tiers:
            del self._last[block], self._copies[block]
            self._units.pop(block, None)
            self._touch((block,))

    def _clear(self) -> Change:
        """The GPU's prefix cache is empty; slower tiers are not part of it."""
        kept = {block: self._last[block] for block in self._tiers if block in self._last}
        self._last.clear()
        for block, key in kept.items():
            self._last[block] = key
        self._units = {block: self._units[block] for block in kept if block in self._units}
        self._copies = dict.fromkeys(kept, 0)
        self._waiting.clear()
        self._touch_all()
        return Cleared()

    # stores

    def _store(self, event: BlockStored, changes: list[Change]) -> None:
        if not _on_gpu(event):
            self._store_elsewhere(event)
        elif self._counts(event) and self._fits(event):
            parent = event.parent_block_hash
            before = None if parent is None else self._last.parts[hash(parent) & LOW].get(parent)
            if parent is not None and before is None:
                self._waiting.add(Waiting(event))
                return
            keys = self._keys(event, before)
            if keys is not None:
                self._book(event, keys, before, _NONE_GONE, changes)
                if len(self._waiting):
                    self._join(event, keys, changes)

    def _join(self, event: BlockStored, keys: list[BlockKey], changes: list[Change]) -> None:
        """Books all that waited for the blocks of a store, and for theirs."""
        todo = [(event, keys)]
        while todo:
            event, keys = todo.pop()
            for place, block in enumerate(event.block_hashes):
                before = keys[(place + 1) * self._stride - 1]
                for waiting in self._waiting.take(block):
                    found = self._keys(waiting.event, before)
                    if found is not None:
                        self._book(waiting.event, found, before, waiting.gone, changes)
                        todo.append((waiting.event, found))

    def _book(
        self,
        event: BlockStored,
        keys: list[BlockKey],
        parent: BlockKey | None,
        gone: AbstractSet[int],
        changes: list[Change],
    ) -> None:
        stride, last = self._stride, self._last.parts
        ends = end_keys(event, keys, stride)
        self._touch(event.block_hashes)
        if stride == 1 and not gone and not ends:  # the hot path: blocks of our size, nearly all of them new
            for block, key in zip(event.block_hashes, keys, strict=True):
                part = last[hash(block) & LOW]
                if block in part:
                    self._learn(block, (key,), 1)
                else:
                    part[block] = key
            changes.append(Stored(tuple(keys), parent))
            return
        for place, block in enumerate(event.block_hashes):
            if place not in gone:
                self._learn(
                    block, (*ends[place : place + 1], *keys[place * stride : (place + 1) * stride]), 1
                )
        if not gone:
            changes.append(Stored(tuple(keys), parent))
        else:
            for place in range(len(event.block_hashes)):
                if place not in gone:
                    before = keys[place * stride - 1] if place else parent
                    changes.append(Stored(tuple(keys[place * stride : (place + 1) * stride]), before))
        for place, (block, end) in enumerate(zip(event.block_hashes, ends, strict=False)):
            # one that was learned without its end would be removed without it
            if place not in gone and self._units.get(block, ())[:1] == (end,):
                changes.append(Stored((end,), keys[(place + 1) * stride - 1]))

    def _learn(self, block: EngineHash, keys: Sequence[BlockKey], copies: int) -> None:
        if block in self._last:
            self._set_copies(block, self._copies.get(block, 1) + copies)
            return
        self._last[block] = keys[-1]
        if len(keys) > 1:
            self._units[block] = tuple(keys)
        if copies != 1:
            self._copies[block] = copies

    def _store_elsewhere(self, event: BlockStored) -> None:
        """A slower tier. Most such stores bring only names, known or still to come; some bring tokens too."""
        for block in self._tiers.stored(event.medium or GPU, event.block_hashes):
            self._forget_if_unused(block)
        self._touch(event.block_hashes)
        parent = event.parent_block_hash
        if event.token_ids and (parent is None or parent in self._last) and self._fits(event):
            keys = self._keys(event, None if parent is None else self._last[parent])
            if keys is not None:
                ends, stride = end_keys(event, keys, self._stride), self._stride
                for place, block in enumerate(event.block_hashes):
                    own = keys[place * stride : (place + 1) * stride]
                    self._learn(block, (*ends[place : place + 1], *own), 0)

    def _keys(self, event: BlockStored, parent: BlockKey | None) -> list[BlockKey] | None:
        if parent is None:
            parent = root_key(root_scope(event, self.model))
        try:
            packed = pack_tokens(event.token_ids)
        except OverflowError:  # no token id
            self._rejected += 1
            return None
        extras = media_extras(event, self._stride)
        return block_keys(parent, packed, block_size=self.block_size, extras=extras)

    # what counts

    def _counts(self, event: BlockStored | BlockRemoved) -> bool:
        """Whether the event is of the K/V group that we follow; the first that can be followed is chosen."""
        group = event.group_idx or 0
        if group == self.group:
            return True
        if self.group is None and isinstance(event, BlockStored):
            kind = event.kv_cache_spec_kind
            if kind in FULL_ATTENTION or (kind is None and group == 0):
                self.group = group
                self.unsupported = ""
                return True
            self.unsupported = f"no full-attention K/V group seen yet, only {kind}"
        self._foreign_groups += 1
        return False

    def _fits(self, event: BlockStored) -> bool:
        """Whether its blocks are made of whole blocks of ours, and their tokens are all there."""
        size = event.block_size
        if not event.block_hashes or size <= 0 or len(event.token_ids) != size * len(event.block_hashes):
            self._rejected += 1
            return False
        stride, rest = divmod(size, self.block_size)
        if rest or self._stride not in (0, stride):
            known = self._stride * self.block_size or self.block_size
            self.unsupported = f"blocks of {size} tokens can't be reconciled with blocks of {known}"
            self._rejected += 1
            return False
        self._stride = stride
        return True


def _on_gpu(event: BlockStored | BlockRemoved) -> bool:
    return event.medium == GPU or event.medium is None or event.medium.upper() == GPU
