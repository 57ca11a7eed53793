"""Block keys: which K/V a block of a prompt is (docs/block-keys.md has the definition and golden vectors).

An old position never sees a newer token, so a block's K and V depend on its own tokens and on all before
them, and on nothing else but what the root names. Hence the chain:

    root   = xxh3_64("pgw1" 0x1f model 0x1f adapter 0x1f salt)
    key[i] = xxh3_64(key[i-1] as uint64 little-endian || block i's tokens as uint32 little-endian || extra[i])
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from xxhash import xxh3_64_intdigest

from gateway.types import BlockKey, CacheScope

BLOCK_SIZE = 16
"""Tokens in a block, unless the fleet's engines use another size."""

TOKEN_BYTES = 4
MOST_LOOKAHEAD = 4
"""Tokens behind a block that an engine may look at, for its ends to be kept."""
_AT_ONCE = 64
"""Blocks that are cut out of a prompt by one call."""
_SEPARATOR = "\x1f"
_pack_key = struct.Struct("<Q").pack


@lru_cache(maxsize=4096)
def root_key(scope: CacheScope) -> BlockKey:
    """The parent of every first block in `scope`."""
    name = _SEPARATOR.join(("pgw1", scope.model, scope.adapter, scope.salt))
    # JSON can say half a surrogate pair; an engine refuses it, and is the one to say so
    return BlockKey(xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")))


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as uint32 little-endian, 4 bytes each. Raises OverflowError for an id outside 0…2³²-1."""
    packed = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    if sys.byteorder == "big":  # array is native-endian, the key's definition is not
        packed = array("I", packed)
        packed.byteswap()
    return packed.tobytes()


def block_keys(
    parent: BlockKey,
    packed: bytes,
    *,
    block_size: int = BLOCK_SIZE,
    max_blocks: int | None = None,
    extras: Mapping[int, bytes] | None = None,
) -> list[BlockKey]:
    """Keys of the full blocks of `packed` (see `pack_tokens`), chained from `parent`.

    `max_blocks` stops early. `extras` gives, by block number from 0, the bytes that name the media which
    the block overlaps. A tail shorter than a block has no key.
    """
    width = block_size * TOKEN_BYTES
    blocks = len(packed) // width
    if max_blocks is not None and max_blocks < blocks:
        blocks = max_blocks
    key: int = parent
    if extras:
        keys: list[BlockKey] = []
        for i in range(blocks):
            chunk = packed[i * width : (i + 1) * width] + extras.get(i, b"")
            key = xxh3_64_intdigest(_pack_key(key) + chunk)
            keys.append(BlockKey(key))
        return keys
    # the hot path: one pack and one hash a block, and one unpack for many
    pack, digest = _joined(width).pack, xxh3_64_intdigest
    whole = blocks - blocks % _AT_ONCE
    found: list[Any] = []  # digests, which are keys by this
    if whole:
        runs = _cut(width, _AT_ONCE).iter_unpack(memoryview(packed)[: whole * width])
        found = [key := digest(pack(key, chunk)) for run in runs for chunk in run]
    rest = _cut(width, blocks - whole).unpack_from(packed, whole * width)
    found += [key := digest(pack(key, chunk)) for chunk in rest]
    return found


@lru_cache(maxsize=16)
def _joined(width: int) -> struct.Struct:
    """A parent's key and a block's bytes, as they are hashed."""
    return struct.Struct(f"<Q{width}s")


@lru_cache(maxsize=256)
def _cut(width: int, blocks: int) -> struct.Struct:
    """So many blocks, one behind the other."""
    return struct.Struct(f"{width}s" * blocks)


def end_key(key: BlockKey, lookahead: Iterable[int]) -> BlockKey:
    """Names a block together with the tokens behind it that its engine looked at: they are hashed as if they
    were a block of their own. Raises OverflowError for what is no token id."""
    return BlockKey(xxh3_64_intdigest(_pack_key(key) + pack_tokens(lookahead)))


def cacheable_blocks(num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    """How many leading blocks of a prompt can be served from cache: its last token is always computed."""
    return max(0, (num_tokens - 1) // block_size)
