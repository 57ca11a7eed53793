"""The same logits as an implementation that isn't ours: `transformers`, in float32, eager attention.

`make check-logits` runs it, in an environment that has torch and transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workers.model.hf import load_hf
from workers.model.runner import NumpyRunner
from workers.model.tiny import TinySpec, ensure_tiny
from workers.types import SamplingParams, StepItem

pytestmark = pytest.mark.heavy

TOLERANCE = 1e-4
"""Largest difference of any logit, at logits that spread by about 2."""
TOKENS = np.random.RandomState(3).randint(0, 256, size=200).tolist()
CHUNKS = [(0, 1), (1, 2), (2, 50), (50, 130), (130, 199), (199, 200)]

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def save_random(folder: Path, model_type: str, dtype: str, changes: dict[str, Any]) -> None:
    """A checkpoint as `transformers` writes it, every parameter random: biases too, which start as zeros."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.1)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="100KB")


def their_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    return logits


def largest_difference(folder: Path, tokens: list[int]) -> float:
    """Over the logits after each chunk of a prefill in chunks, single tokens among them."""
    runner = NumpyRunner(load_hf(folder), num_blocks=13)
    theirs = their_logits(folder, tokens)
    greedy = SamplingParams(temperature=0)
    assert theirs.std() > 1
    differences = []
    for start, stop in CHUNKS:
        ours = runner.logits([StepItem("r", tokens[start:stop], start, range(13), greedy, True)])[0]
        differences.append(float(np.abs(ours - theirs[stop - 1]).max()))
    return max(differences)


@pytest.mark.parametrize(
    ("model_type", "dtype", "changes"),
    [
        ("llama", "float32", {}),
        ("llama", "bfloat16", {}),
        ("llama", "float16", {}),
        ("llama", "float32", {"num_key_value_heads": 1}),
        ("llama", "float32", {"num_key_value_heads": 8, "head_dim": 16}),
        ("llama", "float32", {"attention_bias": True, "mlp_bias": True}),
        ("llama", "float32", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
        ("llama", "float32", {"rope_parameters": LINEAR}),
        ("mistral", "float32", {"sliding_window": None, "rms_norm_eps": 1e-5}),
        ("qwen2", "float32", {"tie_word_embeddings": True}),
        ("qwen2", "bfloat16", {"tie_word_embeddings": True}),
        ("qwen2", "float32", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ],
)
def test_logits_of_random_checkpoints(
    tmp_path: Path, model_type: str, dtype: str, changes: dict[str, Any]
) -> None:
    save_random(tmp_path, model_type, dtype, changes)
    difference = largest_difference(tmp_path, TOKENS)
    print(f"{model_type} {dtype} {changes}: {difference:.1e}")
    assert difference < TOLERANCE


@pytest.mark.parametrize("spec", [TinySpec(), TinySpec(flavour="qwen2")], ids=["llama", "qwen2"])
def test_logits_of_our_own_tiny_models(tmp_path: Path, spec: TinySpec) -> None:
    folder = ensure_tiny(tmp_path, spec)
    difference = largest_difference(folder, [4 * token + 3 for token in TOKENS])
    print(f"tiny {spec.flavour}: {difference:.1e}")
    assert difference < TOLERANCE
