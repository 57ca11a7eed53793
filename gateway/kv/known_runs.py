"""The keys of blocks that came before are looked up, not hashed again.

A chat's next turn begins with all that it was, and many chats begin with one system prompt: most of a
prompt's keys were made for another one. Blocks are taken in runs; a run is known by the key before it and its
first block, and its keys are taken where all of its tokens are the same.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.kv.keys import BLOCK_SIZE, TOKEN_BYTES, block_keys
from gateway.types import BlockKey

RUN = 64
"""Blocks in a run. What is left of a prompt behind its last whole run is hashed each time."""
MOST_BYTES = 8 * 1024 * 1024
"""Of tokens: 2,048 runs of blocks of 16. Their keys take another half of it; the index keeps most, too."""


class KnownRuns:
    """Of the runs that were asked for last, `most_bytes` of tokens are kept, whatever the size of a block."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._room = most_bytes
        self._runs: OrderedDict[tuple[BlockKey, bytes], tuple[bytes, list[BlockKey]]] = OrderedDict()

    def keys(
        self,
        parent: BlockKey,
        packed: bytes,
        *,
        block_size: int = BLOCK_SIZE,
        max_blocks: int | None = None,
    ) -> list[BlockKey]:
        """What `block_keys` gives for the same."""
        width = block_size * TOKEN_BYTES
        blocks = len(packed) // width
        if max_blocks is not None and max_blocks < blocks:
            blocks = max_blocks
        runs, size = self._runs, RUN * width
        last = blocks // RUN * size
        found: list[BlockKey] = []
        start = 0
        while start < last:
            run = packed[start : start + size]
            name = parent, run[:width]
            known = runs.get(name)
            if known is None or known[0] != run:
                break
            runs.move_to_end(name)
            found += known[1]
            parent = found[-1]
            start += size
        new = block_keys(parent, packed[start : blocks * width], block_size=block_size)
        for first in range(0, len(new) // RUN * RUN, RUN):  # what follows something new is new
            run = packed[start : start + size]
            keys = new[first : first + RUN]
            if runs.pop((parent, run[:width]), None) is not None:  # one that begins alike
                self._room += size
            runs[parent, run[:width]] = run, keys
            self._room -= size
            parent = keys[-1]
            start += size
        while self._room < 0:
            _, (gone, _) = runs.popitem(last=False)
            self._room += len(gone)
        return found + new if found else new
