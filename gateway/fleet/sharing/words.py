"""What one replica says to the others, and its form on the wire: msgpack, an array of these fields."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.fleet.load import LoadVector
from gateway.types import BlockKey, WorkerId

FORMAT = 1
_FIGURES = len(LoadVector._fields)


@dataclass(frozen=True, slots=True)
class Placement:
    """`worker` will soon hold `keys`, the leading blocks of a prompt that was just routed there."""

    worker: WorkerId
    keys: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class Word:
    """`loads` is all that the replica has in flight where `whole`, else only of the workers named."""

    replica: str
    number: int
    """Counts a replica's words; a copy or a late one is known by it."""
    loads: Mapping[WorkerId, LoadVector] = field(default_factory=dict)
    placements: Sequence[Placement] = ()
    whole: bool = True
    leaving: bool = False
    """The replica ends in order: nothing of it is left in flight."""


class _Wire(msgspec.Struct, array_like=True, gc=False):
    """New fields go to the end, with a default."""

    format: int
    replica: str
    number: int
    whole: bool
    leaving: bool
    loads: dict[str, list[int]]
    """In the order of LoadVector's fields; a replica of another release may give more of them, or fewer."""
    placements: list[tuple[str, bytes]]


def _pack(keys: Sequence[BlockKey]) -> bytes:
    """8 bytes a key, little-endian."""
    return struct.pack(f"<{len(keys)}Q", *keys)


def _unpack(packed: bytes) -> Sequence[BlockKey]:
    return [BlockKey(key) for (key,) in struct.iter_unpack("<Q", packed)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)


def encode(word: Word) -> bytes:
    placements = [(placed.worker, _pack(placed.keys)) for placed in word.placements]
    loads = {str(worker): list(vector) for worker, vector in word.loads.items()}
    wire = (FORMAT, word.replica, word.number, word.whole, word.leaving, loads, placements)
    return _encoder.encode(wire)


def decode(data: bytes) -> Word | None:
    """None for what is not a word of this format: a newer replica's, or a stranger's on the channel."""
    try:
        wire = _decoder.decode(data)
        if wire.format != FORMAT:
            return None
        placements = [Placement(WorkerId(worker), _unpack(keys)) for worker, keys in wire.placements]
    except (msgspec.DecodeError, struct.error):
        return None
    loads = {WorkerId(worker): LoadVector(*vector[:_FIGURES]) for worker, vector in wire.loads.items()}
    return Word(wire.replica, wire.number, loads, placements, wire.whole, wire.leaving)
