"""A tokenised prompt → the keys of its blocks."""

from __future__ import annotations

from array import array

import msgspec

from gateway.kv.keys import block_keys, cacheable_blocks, pack_tokens
from gateway.prompt.base import TokenPrompt
from gateway.types import BlockKey


class PromptKeys(msgspec.Struct, frozen=True):
    """One prompt of a request, in units of the pool's block."""

    tokens: int
    cacheable: list[BlockKey]
    """What may come from a cache: never the block with the last token."""
    full: list[BlockKey]
    """What the worker will hold when it has prefilled the prompt: every full block."""


def prompt_keys(
    prompt: TokenPrompt, root: BlockKey, *, unit: int, keep_last: int | None = None
) -> PromptKeys:
    """`keep_last` is the request's truncation: engines keep that many tokens from the end."""
    tokens, exact = truncated(prompt, keep_last)
    full = block_keys(root, pack_tokens(tokens), block_size=unit, max_blocks=exact // unit)
    cacheable = cacheable_blocks(len(tokens), unit)
    return PromptKeys(len(tokens), full if cacheable >= len(full) else full[:cacheable], full)


def truncated(prompt: TokenPrompt, keep_last: int | None) -> tuple[array[int], int]:
    """(tokens, how many of them are exact) after truncation."""
    drop = 0 if keep_last is None else max(0, len(prompt.tokens) - keep_last)
    if drop == 0:
        return prompt.tokens, prompt.exact_tokens
    return prompt.tokens[drop:], max(0, prompt.exact_tokens - drop)
