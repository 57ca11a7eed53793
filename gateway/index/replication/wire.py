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
_HELD = struct.Struct("<QI")
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


def unpack_records(data: bytes) -> Iterator[Held]:
    """Raises StoreError for bytes that no batch wrote."""
    if len(data) % _RECORD.size:
        raise StoreError(f"a change of {len(data)} bytes", kind="refused")
    for key, parent, copies in _RECORD.iter_unpack(data):
        yield Held(key, parent or None, copies)


def unpack_held(page: dict[bytes, bytes]) -> Iterator[Held]:
    """A page of the `held` hash."""
    for field, value in page.items():
        if len(field) != _KEY.size or len(value) != _HELD.size:
            raise StoreError("an entry that is no held block", kind="refused")
        parent, copies = _HELD.unpack(value)
        yield Held(BlockKey(_KEY.unpack(field)[0]), parent or None, copies)


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
