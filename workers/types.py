"""Contracts inside the engine: what a request asks, what a step feeds, what comes out.

One step is schedule → run → postprocess → publish. The scheduler and the block pool decide; a `Runner` turns
token ids into the next token: by arithmetic (workers/model) or by a timing model (workers/sim).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.types import CacheScope

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    """How many alternatives to report beside the chosen token; None reports nothing."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate (`n` > 1 and lists of prompts are several of these)."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    scope: CacheScope
    """Root of its block keys: nothing is shared across scopes."""
    skip_cache_read: bool = False
    """Compute every prompt position (prompt log-probabilities are wanted)."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), most likely first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepItem:
    """What one sequence feeds in one step: `tokens` at positions start … start+len(tokens)-1.

    `block_table[p // block_size]` is the physical block of position p, and covers every position up to the
    last one fed. K/V of positions before `start` are there already, computed or shared; or an earlier item of
    the same step writes them, so a runner writes the whole step's K/V of a layer before it attends there.
    """

    request_id: str
    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    sampling: SamplingParams
    samples: bool
    """The last token fed ends the known sequence, so the next one is sampled from its logits."""
    output_token_ids: Sequence[int] = ()
    """What it has generated so far (penalties, seeds)."""
    prompt_len: int = 0
    prompt_token_ids: Sequence[int] = ()
    """The whole prompt: what `repetition_penalty` counts beside the outputs. A reference, never a copy."""


class Runner(Protocol):
    """Computes one step. Returns one entry per item: the sampled token, or None where `samples` is false."""

    vocab_size: int
    eos_token_ids: frozenset[int]

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]: ...


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One new token of one sequence, or its end."""

    request_id: str
    token_id: int | None
    """None where a sequence ends without a token (abort)."""
    num_cached_tokens: int
    """Prompt tokens whose K/V came from the prefix cache, at the sequence's first scheduling."""
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id that ended it, other than an end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: str
    """Served base model name."""
    block_size: int = 16
    num_blocks: int = 512
    max_model_len: int = 2048
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    """Token budget of one step: decodes first, then prefill in chunks."""
    long_prefill_token_threshold: int = 0
    """No sequence gets more of a step's budget than this while others run or wait; 0: as much as is left."""
    enable_prefix_caching: bool = True
    kv_dtype: Literal["float32", "float16", "int8", "fp8"] = "float32"
