"""Ends: the blocks of an engine whose draft model reads ahead, each with the tokens behind it.

The K/V of such a block is of what follows, too: the engine has it for prompts that go on with the same
tokens. A match of our keys can't tell that of its last block, for which what follows is not matched. So
these blocks are held under a second key (`end_key`), and who makes a promise looks whether that of the last
block is held.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.kv.events import BlockStored
from gateway.kv.keys import MOST_LOOKAHEAD, end_key
from gateway.types import BlockKey


def end_keys(event: BlockStored, keys: Sequence[BlockKey], stride: int) -> list[BlockKey]:
    """By block of the event, in whose `keys` each has `stride`; none where the engine does not look ahead, or
    farther than is looked for."""
    ahead = event.lookahead_token_ids
    if not ahead or len(ahead) != len(event.block_hashes):
        return []
    if not all(0 < len(tokens) <= MOST_LOOKAHEAD for tokens in ahead):
        return []
    try:
        return [end_key(key, tokens) for key, tokens in zip(keys[stride - 1 :: stride], ahead, strict=True)]
    except OverflowError:  # no token id
        return []
