"""From logits to the next token, in the order that vLLM applies: penalties, temperature, top-k, top-p, draw.

Log-probabilities are reported of the raw logits, before any of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.types import Sampled, SamplingParams, TokenLogprobs

F64 = npt.NDArray[np.float64]
GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy: dividing by them overflows."""


@dataclass(frozen=True, slots=True)
class History:
    """What a sequence consists of so far. Penalties look at it, and a seeded draw at how long it is."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


def sample(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    history: History,
    eos_token_ids: frozenset[int],
    rng: np.random.Generator,
) -> Sampled:
    """`logits` [vocab] of one position. With `params.seed` the draw depends on seed and number of outputs
    alone, so that a preempted sequence goes on as it would have; without, on `rng`."""
    raw = logits.astype(np.float64)
    allowed = _mask_ends(_penalise(raw, params, history), params, history, eos_token_ids)
    if params.temperature < GREEDY_BELOW:
        token = int(allowed.argmax())
    else:
        ids, probabilities = _candidates(allowed / params.temperature, params)
        token = int(ids[_draw(probabilities, _generator(params.seed, len(history.output), rng))])
    logprobs = None if params.logprobs is None else _report(raw, token, params.logprobs)
    return Sampled(token, logprobs)


def _penalise(logits: F64, params: SamplingParams, history: History) -> F64:
    """repetition_penalty (Keskar et al. 2019, arXiv:1909.05858) counts prompt and outputs; OpenAI's presence
    and frequency penalties count outputs only."""
    penalised = logits.copy()
    if params.repetition_penalty != 1.0:
        seen = np.fromiter({*history.prompt, *history.output}, dtype=np.int64)
        values = penalised[seen]
        factor = params.repetition_penalty
        penalised[seen] = np.where(values > 0, values / factor, values * factor)
    if (params.presence_penalty or params.frequency_penalty) and history.output:
        counts = Counter(history.output)
        ids = np.fromiter(counts.keys(), dtype=np.int64)
        times = np.fromiter(counts.values(), dtype=np.float64)
        penalised[ids] -= params.presence_penalty + params.frequency_penalty * times
    return penalised


def _mask_ends(logits: F64, params: SamplingParams, history: History, eos: frozenset[int]) -> F64:
    """Until `min_tokens` are out, nothing that would end the sequence can be chosen."""
    if len(history.output) < params.min_tokens:
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
        logits[[end for end in ends if 0 <= end < len(logits)]] = -np.inf
    return logits


def _candidates(logits: F64, params: SamplingParams) -> tuple[npt.NDArray[np.int64], F64]:
    """Token ids that may be drawn, with their probabilities, most likely first where they were cut."""
    if 0 < params.top_k < len(logits):
        ids = np.argpartition(logits, -params.top_k)[-params.top_k :]
    else:
        ids = np.arange(len(logits))
    probabilities = _softmax(logits[ids])
    if params.top_p >= 1.0:
        return ids, probabilities
    order = np.argsort(-probabilities, kind="stable")
    ids, probabilities = ids[order], probabilities[order]
    # a token stays while those before it hold less than top_p; the first always does
    before = np.cumsum(probabilities) - probabilities
    kept = max(1, int(np.searchsorted(before, params.top_p, side="left")))
    return ids[:kept], probabilities[:kept] / probabilities[:kept].sum()


def _softmax(logits: F64) -> F64:
    weights: F64 = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


def _generator(seed: int | None, position: int, shared: np.random.Generator) -> np.random.Generator:
    if seed is None:
        return shared
    return np.random.default_rng([seed % 2**64, position])


def _draw(probabilities: F64, rng: np.random.Generator) -> int:
    """Index drawn by inversion; a probability of zero is never drawn."""
    cumulative = np.cumsum(probabilities)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _report(logits: F64, token: int, count: int) -> TokenLogprobs:
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    count = min(count, len(logprobs))
    top: npt.NDArray[np.int64] = (
        np.argpartition(-logprobs, count - 1)[:count] if count else np.empty(0, np.int64)
    )
    top = top[np.lexsort((top, -logprobs[top]))]
    return TokenLogprobs(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in top))
