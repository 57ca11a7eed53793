"""Sampling against distributions worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from workers.model.sampling import History, sample
from workers.types import SamplingParams

PROBABILITIES = [0.05, 0.5, 0.15, 0.3]
LOGITS = np.log(np.array(PROBABILITIES, dtype=np.float32))
DRAWS = 4000


def draw(params: SamplingParams, history: History | None = None, *, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    return sample(LOGITS, params, history or History(), frozenset({1}), rng).token_id


def frequencies(params: SamplingParams, history: History | None = None) -> list[float]:
    rng = np.random.default_rng(42)
    drawn = Counter(
        sample(LOGITS, params, history or History(), frozenset({1}), rng).token_id for _ in range(DRAWS)
    )
    return [drawn[i] / DRAWS for i in range(4)]


# four standard deviations of a share of 0.5 over 4,000 draws are 0.032; the generator is seeded anyway
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), PROBABILITIES),
        (SamplingParams(top_k=2), [0, 0.625, 0, 0.375]),
        (SamplingParams(top_k=4), PROBABILITIES),
        (SamplingParams(top_p=0.79), [0, 0.625, 0, 0.375]),
        (SamplingParams(top_p=0.81), [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        (SamplingParams(top_p=0.01), [0, 1, 0, 0]),
        # of the two most likely, 0.625 alone holds 0.6
        (SamplingParams(top_k=2, top_p=0.6), [0, 1, 0, 0]),
        # p^(1/T), normed: squares for T = 0.5
        (SamplingParams(temperature=0.5), [0.0025 / 0.365, 0.25 / 0.365, 0.0225 / 0.365, 0.09 / 0.365]),
        (SamplingParams(min_tokens=1), [0.1, 0, 0.3, 0.6]),
        (SamplingParams(min_tokens=1, stop_token_ids=(3,)), [0.25, 0, 0.75, 0]),
        (
            SamplingParams(min_tokens=1, ignore_eos=True, stop_token_ids=(3,)),
            [0.05 / 0.7, 0.5 / 0.7, 0.15 / 0.7, 0],
        ),
    ],
)  # fmt: skip
def test_draws_follow_the_distribution(params: SamplingParams, expected: list[float]) -> None:
    drawn = frequencies(params)
    np.testing.assert_allclose(drawn, expected, atol=0.032)
    assert [f == 0 for f in drawn] == [e == 0 for e in expected]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_most_likely(temperature: float) -> None:
    assert draw(SamplingParams(temperature=temperature)) == 1


def test_min_tokens_no_longer_holds_once_they_are_out() -> None:
    assert draw(SamplingParams(temperature=0, min_tokens=2), History(output=(0,))) == 3
    assert draw(SamplingParams(temperature=0, min_tokens=2), History(output=(0, 0))) == 1


def test_a_seed_decides_by_position_and_nothing_else() -> None:
    params = SamplingParams(seed=7)

    def run(shared: int) -> list[int]:
        return [draw(params, History(output=(0,) * n), seed=shared) for n in range(40)]

    assert run(1) == run(2)
    assert len(set(run(1))) > 1  # positions differ
    assert run(1) != [draw(replace(params, seed=8), History(output=(0,) * n)) for n in range(40)]
    assert draw(SamplingParams(seed=-1)) == draw(SamplingParams(seed=-1))


def test_presence_and_frequency_penalties_count_outputs() -> None:
    history = History(prompt=(3, 3, 3), output=(1, 1, 1, 2))
    greedy = SamplingParams(temperature=0)
    # token 1: ln 0.5 - 3·0.2 = -1.29 < ln 0.3 = -1.20
    assert draw(replace(greedy, frequency_penalty=0.2), history) == 3
    assert draw(replace(greedy, frequency_penalty=0.1), history) == 1
    # token 1: ln 0.5 - 0.6, whatever the count
    assert draw(replace(greedy, presence_penalty=0.6), history) == 3
    assert draw(replace(greedy, presence_penalty=0.5), history) == 1


def test_repetition_penalty_counts_the_prompt_too_and_pushes_both_signs_down() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.5], dtype=np.float32)
    params = SamplingParams(temperature=0, repetition_penalty=2.0, logprobs=0)

    def pick(history: History, allowed: tuple[int, ...]) -> int:
        masked = np.where(np.isin(np.arange(4), allowed), logits, -100).astype(np.float32)
        return sample(masked, params, history, frozenset(), np.random.default_rng(0)).token_id

    assert pick(History(), (0, 1)) == 0
    assert pick(History(prompt=(0,)), (0, 1)) == 1  # 2.0 / 2 < 1.5
    assert pick(History(output=(0,)), (0, 1)) == 1
    assert pick(History(output=(2,)), (2, 3)) == 3  # -1.0 × 2 < -1.5


def test_logprobs_are_of_the_raw_logits_most_likely_first() -> None:
    params = SamplingParams(temperature=0, logprobs=2, min_tokens=5, presence_penalty=1.0)
    sampled = sample(LOGITS, params, History(output=(3,)), frozenset({1}), np.random.default_rng(0))
    # 1 may not be chosen yet, 3 is penalised below 2 (ln 0.3 - 1 < ln 0.15); both are reported as they are
    assert sampled.token_id == 2
    assert sampled.logprobs is not None
    assert sampled.logprobs.token_id == 2
    assert sampled.logprobs.logprob == pytest.approx(math.log(0.15), abs=1e-6)
    assert [token for token, _ in sampled.logprobs.top] == [1, 3]
    assert [logprob for _, logprob in sampled.logprobs.top] == pytest.approx(
        [math.log(0.5), math.log(0.3)], abs=1e-6
    )


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (4, 4), (20, 4)])
def test_how_many_logprobs(asked: int, given: int) -> None:
    sampled = sample(LOGITS, SamplingParams(logprobs=asked), History(), frozenset(), np.random.default_rng(0))
    assert sampled.logprobs is not None
    assert len(sampled.logprobs.top) == given


def test_no_logprobs_unless_asked() -> None:
    assert sample(LOGITS, SamplingParams(), History(), frozenset(), np.random.default_rng(0)).logprobs is None
