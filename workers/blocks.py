"""The block pool: which physical block holds which K/V, who uses it, and which one goes next.

A block is *used* while sequences refer to it, else *free*. A free block may still be *cached*: its K/V stay
valid and findable by key until the block is handed out again. So the free queue is also the queue of
eviction: first the blocks that hold nothing, then the cached ones, the longest unused first. Every operation
is O(1) a block. The order is vLLM's (seen in recordings of 0.28 and 0.32).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from gateway.types import BlockKey, CacheScope
from workers.cache_events import CacheEventLog


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, numbered from 0.

    `log`, if given, hears of every store, removal and reset. Keys are those of `gateway.kv.keys`. Several
    blocks may hold the same key: a sequence that computes a block anew keeps its own, since block tables
    are append-only.
    """

    def __init__(self, num_blocks: int, block_size: int, log: CacheEventLog | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens cannot hold anything")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.releases = 0
        """How often blocks were given back: while it stands still, free space only shrinks."""
        self._log = log
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._users = [0] * num_blocks
        self._key: list[BlockKey | None] = [None] * num_blocks
        self._holders: dict[BlockKey, int | dict[int, None]] = {}
        """Key → its block, or its blocks in order of arrival where there are several."""

    def __repr__(self) -> str:
        return f"<BlockPool {self.num_used} used, {self.num_free} free of {self.num_blocks}>"

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that hold a key, used or free; copies count."""
        return sum(1 if isinstance(held, int) else len(held) for held in self._holders.values())

    def lookup(self, keys: Sequence[BlockKey], limit: int) -> list[int]:
        """The blocks of the longest cached prefix of `keys`, at most `limit` of them. Changes nothing."""
        found: list[int] = []
        holders = self._holders
        for key in keys[:limit]:
            held = holders.get(key)
            if held is None:
                break
            found.append(held if isinstance(held, int) else next(iter(held)))
        return found

    def fits(self, new: int, shared: Iterable[int] = ()) -> bool:
        """Whether `new` blocks could be allocated once `shared` are in use."""
        free = len(self._free)
        if new > free:
            return False
        users = self._users
        return new + sum(1 for block in shared if not users[block]) <= free

    def share(self, blocks: Iterable[int]) -> None:
        """One more user of each; a free one leaves the queue with its K/V intact."""
        users = self._users
        free = self._free
        for block in blocks:
            if not users[block]:
                del free[block]
            users[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one user, the longest unused first; what was cached in them is forgotten.

        Raises ValueError where fewer are free (ask `fits` first); then nothing has changed.
        """
        free = self._free
        if count > len(free):
            raise ValueError(f"{count} blocks wanted, {len(free)} free")
        users = self._users
        keys = self._key
        taken = []
        for _ in range(count):
            block, _none = free.popitem(last=False)
            if keys[block] is not None:
                self._evict(block)
            users[block] = 1
            taken.append(block)
        return taken

    def register(
        self,
        scope: CacheScope,
        blocks: Sequence[int],
        keys: Sequence[BlockKey],
        parent: BlockKey | None,
        token_ids: tuple[int, ...],
    ) -> None:
        """Consecutive `blocks` of one sequence are full: from now on each can be found by its key.

        `parent` is the key before the first, None where it begins the prompt; `token_ids` are those of
        these blocks, in order.
        """
        key_of = self._key
        holders = self._holders
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key
            held = holders.setdefault(key, block)
            if isinstance(held, dict):
                held[block] = None
            elif held != block:
                holders[key] = {held: None, block: None}
        if self._log is not None:
            self._log.stored(scope, keys, parent, token_ids)

    def release(self, table: Sequence[int]) -> None:
        """A sequence lets go of its blocks. Its tail queues before its head, hence is evicted first: without
        the head a tail is worth nothing. Blocks that hold no key are worth nothing at all and go to the very
        front, so that nothing cached is evicted while one of them is free."""
        users = self._users
        free = self._free
        for block in reversed(table):
            users[block] -= 1
            if not users[block]:
                free[block] = None
                if self._key[block] is None:
                    free.move_to_end(block, last=False)
        self.releases += 1

    def reset(self) -> bool:
        """Forget all cached K/V. False, and nothing done, while any block is in use."""
        if self.num_used:
            return False
        self._key = [None] * self.num_blocks
        self._holders.clear()
        self.releases += 1
        if self._log is not None:
            self._log.cleared()
        return True

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Recompute everything from the live block `tables` and from each block's key; raises AssertionError
        at the first thing that differs."""
        users = Counter(block for table in tables for block in table)
        expect(self._users == [users[block] for block in range(self.num_blocks)], "reference counts")
        unused = {block for block in range(self.num_blocks) if not users[block]}
        expect(unused == set(self._free), "the free queue holds the unused blocks, each once")
        cached = [self._key[block] is not None for block in self._free]
        expect(cached == sorted(cached), "free blocks that hold nothing come first")
        holders: dict[BlockKey, set[int]] = {}
        for block, key in enumerate(self._key):
            if key is not None:
                holders.setdefault(key, set()).add(block)
        held = {k: {v} if isinstance(v, int) else set(v) for k, v in self._holders.items()}
        expect(held == holders, "the key map names exactly the blocks that hold each key")

    def _evict(self, block: int) -> None:
        key = self._key[block]
        if key is None:
            return
        self._key[block] = None
        held = self._holders[key]
        if isinstance(held, int):
            del self._holders[key]
        else:
            del held[block]
            if not held:
                del self._holders[key]
        if self._log is not None:
            self._log.removed(key)


def expect(holds: bool, what: str) -> None:
    """An assertion that survives ``python -O``."""
    if not holds:
        raise AssertionError(what)
