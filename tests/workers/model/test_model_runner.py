from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from workers.model.loaded import LoadedModel
from workers.model.runner import NumpyRunner
from workers.types import Runner, SamplingParams, StepItem

Item = Callable[..., StepItem]


def as_runner(model: LoadedModel, **options: object) -> Runner:
    return NumpyRunner(model, num_blocks=8, **options)  # type: ignore[arg-type]


def test_only_items_that_sample_get_a_token(tiny: LoadedModel, item: Item) -> None:
    runner = NumpyRunner(tiny, num_blocks=8)
    steps = [
        item([3, 4, 5], 0, [0], samples=False),
        item([6, 7], 0, [1]),
        item([8], 0, [2], samples=False),
        item([9], 0, [3]),
    ]
    out = as_runner(tiny).execute(steps)
    expected = runner.logits(steps).argmax(axis=1)
    assert expected.shape == (2,)
    assert out[0] is None
    assert out[2] is None
    assert [s.token_id for s in out if s] == expected.tolist()


def test_an_empty_step_and_one_that_only_prefills(tiny: LoadedModel, item: Item) -> None:
    runner = as_runner(tiny)
    assert runner.execute([]) == []
    assert runner.execute([item([3, 4], 0, [0], samples=False)]) == [None]


def test_vocabulary_and_ends_come_from_the_model(tiny: LoadedModel) -> None:
    runner = as_runner(tiny)
    assert runner.vocab_size == 1024
    assert runner.eos_token_ids == {0, 2}


def test_seeded_sequences_are_reproduced_across_engines_and_kept_through_recomputation(
    tiny: LoadedModel,
) -> None:
    params = SamplingParams(seed=11, temperature=1.0)
    prompt = tuple(range(10, 30))

    def generate(runner: Runner, *, forget_after: int | None = None) -> list[int]:
        """Ten tokens; after `forget_after` of them all K/V is computed anew, in other blocks."""
        output: list[int] = []
        table, known = [0, 1], 0
        for _ in range(10):
            if len(output) == forget_after:
                table, known = [5, 6], 0
            tokens = [*prompt, *output][known:]
            step = StepItem("r", tokens, known, table, params, True, tuple(output), len(prompt), prompt)
            (sampled,) = runner.execute([step])
            assert sampled is not None
            known += len(tokens)
            output.append(sampled.token_id)
        return output

    expected = generate(as_runner(tiny, rng=np.random.default_rng(1)))
    assert generate(as_runner(tiny, rng=np.random.default_rng(2))) == expected
    assert generate(as_runner(tiny), forget_after=4) == expected
    assert len(set(expected)) > 3


def test_unseeded_draws_come_from_the_generator_given(tiny: LoadedModel, item: Item) -> None:
    step = replace(item([3, 4, 5], 0, [0]), sampling=SamplingParams(temperature=2.0))

    def draws(seed: int) -> list[int]:
        runner = as_runner(tiny, rng=np.random.default_rng(seed))
        return [s.token_id for _ in range(20) if (s := runner.execute([step])[0])]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_repetition_penalty_reaches_the_prompt(tiny: LoadedModel, item: Item) -> None:
    plain = item([3, 4, 5], 0, [0])
    (first,) = as_runner(tiny).execute([plain])
    assert first is not None
    harsh = replace(
        plain,
        sampling=SamplingParams(temperature=0, repetition_penalty=100.0),
        prompt_token_ids=(first.token_id,),
    )
    (second,) = as_runner(tiny).execute([harsh])
    assert second is not None
    assert second.token_id != first.token_id
