"""A tokenised prompt → the keys of its blocks."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

import msgspec

from gateway.kv.keys import cacheable_blocks, pack_tokens
from gateway.kv.known_runs import KnownRuns
from gateway.prompt.base import TokenPrompt
from gateway.types import BlockKey


class PromptKeys(msgspec.Struct, frozen=True):
    """One prompt of a request, in units of the pool's block."""

    tokens: int
    cacheable: list[BlockKey]
    """What may come from a cache: never the block with the last token."""
    full: list[BlockKey]
    """What the worker will hold when it has prefilled the prompt: every full block."""
    ids: array[int]
    """The tokens themselves, as array('I')."""


MOST_BLOCKS = 65_536
"""Of a request that are looked up and promised: a million tokens, in blocks of 16. A decision is one step, in
which nobody else is served, and this many take it some tens of milliseconds."""
_SLICE = 8_192
"""Blocks that are hashed between two turns of the event loop."""


def prompt_keys(
    prompt: TokenPrompt,
    root: BlockKey,
    runs: KnownRuns,
    *,
    unit: int,
    keep_last: int | None = None,
    most_blocks: int = MOST_BLOCKS,
) -> PromptKeys:
    """`keep_last` is the request's truncation: engines keep that many tokens from the end."""
    tokens, exact = prompt.tokens, prompt.exact_tokens
    if keep_last is not None:
        tokens, exact = truncated(prompt, keep_last)
    full = runs.keys(root, pack_tokens(tokens), block_size=unit, max_blocks=min(exact // unit, most_blocks))
    return _keyed(tokens, full, unit)


async def prompts_keys(
    prompts: Sequence[TokenPrompt],
    root: BlockKey,
    runs: KnownRuns,
    *,
    unit: int,
    keep_last: int | None = None,
    most_tokens: int | None = None,
) -> list[PromptKeys]:
    """Of all prompts of a request. Beyond the `most_tokens` that any engine takes of one, and beyond
    MOST_BLOCKS of all together, there are no keys."""
    left, done = MOST_BLOCKS, 0
    keyed: list[PromptKeys] = []
    for prompt in prompts:
        if done > _SLICE:
            await asyncio.sleep(0)
            done = 0
        done += len(prompt.tokens) // unit
        most = left if most_tokens is None else min(left, most_tokens // unit)
        if min(len(prompt.tokens) // unit, most) <= _SLICE:
            keyed.append(prompt_keys(prompt, root, runs, unit=unit, keep_last=keep_last, most_blocks=most))
        else:
            keyed.append(await _in_slices(*truncated(prompt, keep_last), root, runs, unit, most))
        left -= len(keyed[-1].full)
    return keyed


async def _in_slices(
    tokens: array[int], exact: int, root: BlockKey, runs: KnownRuns, unit: int, most_blocks: int
) -> PromptKeys:
    full: list[BlockKey] = []
    blocks = min(exact // unit, most_blocks)
    for start in range(0, blocks, _SLICE):
        await asyncio.sleep(0)
        packed = pack_tokens(tokens[start * unit : min(start + _SLICE, blocks) * unit])
        full += runs.keys(full[-1] if full else root, packed, block_size=unit)
    return _keyed(tokens, full, unit)


def _keyed(ids: array[int], full: list[BlockKey], unit: int) -> PromptKeys:
    tokens = len(ids)
    cacheable = cacheable_blocks(tokens, unit)
    return PromptKeys(tokens, full if cacheable >= len(full) else full[:cacheable], full, ids)


def truncated(prompt: TokenPrompt, keep_last: int | None) -> tuple[array[int], int]:
    """(tokens, how many of them are exact) after truncation."""
    drop = 0 if keep_last is None else max(0, len(prompt.tokens) - keep_last)
    if drop == 0:
        return prompt.tokens, prompt.exact_tokens
    return prompt.tokens[drop:], max(0, prompt.exact_tokens - drop)
