"""A real model says what it says elsewhere: text and log-probabilities come from transformers' own reading of
the same GGUF file (data/models/smollm2_greedy.json names the versions).

Two tokens are nowhere closer than 0.01 in logits there, a thousand times what the implementations differ by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt.files import load_tokenizer_files
from workers.model.loaded import LoadedModel
from workers.model.resolve import resolve_model
from workers.model.runner import NumpyRunner
from workers.types import SamplingParams, StepItem

DATA = Path(__file__).parents[2] / "data/models/smollm2_greedy.json"
CASES: list[dict[str, Any]] = json.loads(DATA.read_text())["cases"]


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    """In the cache that `serve` uses too: what one of them converts the other finds."""
    return resolve_model("smollm2")


@pytest.mark.parametrize("case", CASES, ids=["sentence", "list"])
def test_greedy_text_and_logprobs_of_smollm2(smollm2: LoadedModel, case: dict[str, Any]) -> None:
    tokenizer = load_tokenizer_files(smollm2.tokenizer_source).tokenizer
    prompt = tokenizer.encode(case["prompt"], add_special_tokens=False).ids
    assert prompt == case["prompt_token_ids"]

    runner = NumpyRunner(smollm2, num_blocks=6)
    params = SamplingParams(temperature=0, logprobs=0)
    tokens, start, output, logprobs = prompt, 0, [], []
    while len(output) < len(case["output_token_ids"]):
        (sampled,) = runner.execute([StepItem("r", tokens, start, range(6), params, True, tuple(output))])
        assert sampled is not None
        assert sampled.logprobs is not None
        output.append(sampled.token_id)
        logprobs.append(sampled.logprobs.logprob)
        tokens, start = [sampled.token_id], start + len(tokens)

    assert output == case["output_token_ids"]
    assert tokenizer.decode(output, skip_special_tokens=False) == case["text"]
    # measured: 1.2e-5 at most
    assert logprobs == pytest.approx(case["output_logprobs"], abs=1e-4)


def test_its_shape_and_its_end(smollm2: LoadedModel) -> None:
    config = smollm2.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert config.eos_token_ids == {2}  # <|im_end|>
    assert smollm2.weights.head is smollm2.weights.embed
