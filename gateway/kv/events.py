"""KV cache events: what an engine says about the blocks it holds.

Field names are vLLM's. A batch carries events in the order in which they happened; removals precede the
stores that evicted them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gateway.types import EngineHash

GPU = "GPU"
"""The medium of K/V that prefill can use directly. Engines on a CPU say GPU as well."""

ExtraKeys: TypeAlias = tuple[object, ...]
"""What else an engine hashed into a block: a bare cache salt, an adapter name, identities of media."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """`block_hashes` now hold K/V. `token_ids` is flat: len(block_hashes) × block_size ids."""

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str = GPU
    lora_name: str | None = None
    extra_keys: tuple[ExtraKeys | None, ...] | None = None
    """One entry a block, or None where no block has any."""
    group_idx: int | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of each of `block_hashes` is gone. An engine may still hold other copies."""

    block_hashes: tuple[EngineHash, ...]
    medium: str = GPU
    group_idx: int | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The engine's whole prefix cache is empty."""


KVEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    ts: float
    """Unix seconds on the engine's clock."""
    events: tuple[KVEvent, ...]
    dp_rank: int | None = None
    malformed: int = 0
    """Events of this batch that could not be read; the others stand."""
