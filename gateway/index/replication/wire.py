"""How block keys, names and batches are packed for Redis, and back. All integers are little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import StoreError
from gateway.types import BlockKey, EngineHash

_DELTA = struct.Struct("<QQi")
_RECORD = struct.Struct("<QQI")
RECORD_SIZE = _RECORD.size
_KEY = struct.Struct("<Q")
_COUNT = struct.Struct("<I")


class Held(NamedTuple):
    """A worker holds `copies` of `key` now (0: no more). `parent` is the key before it, None at a root."""

    key: BlockKey
    parent: BlockKey | None
    copies: int


@dataclass(frozen=True, slots=True)
class Name:
    """What an engine's own name of a block stands for: `keys` of ours, and its `copies` on the GPU."""

    copies: int
    keys: tuple[BlockKey, ...]


def pack_deltas(deltas: Iterable[tuple[BlockKey, BlockKey | None, int]]) -> bytes:
    return b"".join(_DELTA.pack(key, parent or 0, change) for key, parent, change in deltas)


def unpack_raw(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Key, key before it (0 at a root) and copies, of each record. Raises StoreError for bytes that no batch
    wrote."""
    if len(data) % _RECORD.size:
        raise StoreError(f"records of {len(data)} bytes", kind="refused")
    return _RECORD.iter_unpack(data)


def unpack_records(data: bytes) -> Iterator[Held]:
    """Raises StoreError for bytes that no batch wrote."""
    for key, parent, copies in unpack_raw(data):
        yield Held(BlockKey(key), BlockKey(parent) if parent else None, copies)


def pack_name(block: EngineHash) -> bytes:
    """A letter for the kind, so that an int and bytes of the same content stay apart, then the name."""
    if isinstance(block, bytes):
        return b"b" + block
    return b"i" + _KEY.pack(block) if block >= 0 else b"n" + _KEY.pack(-block)


def unpack_name(field: bytes) -> EngineHash:
    kind, rest = field[:1], field[1:]
    if kind == b"b":
        return rest
    number: int = _KEY.unpack(rest)[0]
    return number if kind == b"i" else -number


def pack_entry(name: Name) -> bytes:
    return _COUNT.pack(name.copies) + b"".join(map(_KEY.pack, name.keys))


def unpack_entry(value: bytes) -> Name:
    keys = tuple(BlockKey(key) for (key,) in _KEY.iter_unpack(value[_COUNT.size :]))
    return Name(_COUNT.unpack_from(value)[0], keys)
