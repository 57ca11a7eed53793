"""What a ledger knows, in figures for people, and as bytes for the successor of a dead writer."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from gateway.errors import EventDecodeError
from gateway.events.waiting import Waiting
from gateway.kv.events import BlockStored
from gateway.types import BlockKey, EngineHash

FORMAT = 1


class LedgerState(msgspec.Struct, array_like=True, gc=False):
    """About 17 bytes a block. Field order is the wire's: new fields go to the end, with a default."""

    format: int
    model: str
    block_size: int
    stride: int
    group: int | None
    blocks: list[EngineHash]
    keys: bytes
    """`stride` keys a block, 8 bytes little-endian each, in the order of `blocks`."""
    copies: list[tuple[EngineHash, int]]
    waiting: list[tuple[BlockStored, list[int]]]
    tiers: dict[str, list[tuple[EngineHash, int]]]
    numbers: list[int] = []
    """Of the waiting; without it they are numbered anew."""


@dataclass(frozen=True, slots=True)
class LedgerStats:
    blocks: int
    """The engine's blocks known by name."""
    waiting: int
    """Blocks whose parent is not known."""
    dropped: int
    """Blocks that waited in vain and were given up, so far."""
    rejected: int
    """Stores that contradict themselves, or are of a block size that can't be reconciled, so far."""
    foreign_groups: int
    """Events of K/V groups other than the one that counts, so far."""
    unknown_removals: int
    """Removals of blocks never heard of, so far."""
    tiers: dict[str, int]
    """Blocks in slower tiers, by medium."""
    unresolved: int
    """Of these, blocks whose key is not known."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One of the engine's blocks in the books: its copies on the GPU, and our keys for it."""

    copies: int
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """What changed in the books: entries as they are now, None where they are gone."""

    blocks: dict[EngineHash, BlockEntry | None]
    waiting: dict[int, Waiting | None]
    """By the number under which it waits."""
    tiers: dict[tuple[str, EngineHash], int]
    """Copies by medium and block."""


_decoder = msgspec.msgpack.Decoder(LedgerState)


def dump_state(state: LedgerState) -> bytes:
    return msgspec.msgpack.encode(state)


def load_state(data: bytes, model: str, block_size: int) -> LedgerState:
    """Raises EventDecodeError where it is no such state, or that of another model or unit."""
    try:
        state = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise EventDecodeError(f"not a ledger's state: {error}") from error
    if (state.format, state.model, state.block_size) != (FORMAT, model, block_size):
        raise EventDecodeError(f"a ledger's state of {state.model} in blocks of {state.block_size}")
    if len(state.keys) != 8 * state.stride * len(state.blocks):
        raise EventDecodeError("a ledger's state in which keys are missing")
    return state


def pack_keys(keys: Iterable[BlockKey]) -> bytes:
    words = array("Q", keys)
    _little_endian(words)
    return words.tobytes()


def unpack_keys(packed: bytes) -> list[BlockKey]:
    words = array("Q")
    words.frombytes(packed)
    _little_endian(words)
    return cast(list[BlockKey], words.tolist())


def _little_endian(words: array[int]) -> None:
    if sys.byteorder == "big":
        words.byteswap()
