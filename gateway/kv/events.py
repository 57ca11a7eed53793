"""KV cache events: what an engine says about the blocks it holds.

Field names, their order and the tag are vLLM's (0.33). A batch carries events in the order in which they
happened; removals precede the stores that evicted them.

They are msgspec structs, so that the wire's map form decodes straight into them: an engine under load removes
its blocks one event at a time, and a second object for each would cost as much as the decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from gateway.types import EngineHash

GPU = "GPU"
"""The medium of K/V that prefill can use directly. Engines on a CPU say GPU as well."""

ExtraKeys: TypeAlias = tuple[object, ...]
"""What else an engine hashed into a block: a bare cache salt, an adapter name, identities of media."""


class BlockStored(msgspec.Struct, frozen=True, tag=True, gc=False):
    """`block_hashes` now hold K/V. `token_ids` is flat: len(block_hashes) × block_size ids.

    Stores of other tiers (`medium` is not GPU) may come without tokens, with `block_size` 0 and no parent:
    they name blocks that are known already or will be.
    """

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    """None, from older engines and SGLang, means GPU."""
    lora_name: str | None = None
    extra_keys: tuple[ExtraKeys | None, ...] | None = None
    """One entry a block, or None where no block has any."""
    group_idx: int | None = None
    """Which of a hybrid model's K/V cache groups; one alone is 0, or None in older releases."""
    kv_cache_spec_kind: str | None = None
    """The group's kind: ``full_attention``, ``sliding_window``, ``mamba``…"""
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: tuple[tuple[int, ...], ...] | None = None
    """By block, the tokens behind it of which its K/V is, too: an engine with a draft model that reads ahead
    (EAGLE, MTP) has it for prompts alone that go on with these."""
    cache_salt: str | None = None
    """SGLang's: the salt of the whole prompt, by name. vLLM's is among the `extra_keys`."""


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    """One copy of each of `block_hashes` is gone. An engine may still hold other copies."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = GPU
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, gc=False):
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
    ignored: int = 0
    """Events of a type that this release does not know."""
