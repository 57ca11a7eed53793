from __future__ import annotations

import json
from typing import Any

import pytest

from workers.model.config import ModelConfig, parse_hf_config
from workers.model.errors import ModelFilesInvalid, UnsupportedModel
from workers.model.rope import RopeConfig

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}


def parse(**changes: Any) -> ModelConfig:
    return parse_hf_config(json.dumps(BASE | changes).encode())


def test_what_a_config_leaves_out_has_the_usual_value() -> None:
    assert parse() == ModelConfig(
        model_type="llama",
        vocab_size=128,
        hidden_size=64,
        intermediate_size=160,
        num_layers=3,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=10000.0),
    )


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"num_key_value_heads": 2}, "num_kv_heads", 2),
        ({"num_key_value_heads": 1}, "num_kv_heads", 1),
        ({"head_dim": 32}, "head_dim", 32),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps", 1e-5),
        ({"tie_word_embeddings": True}, "tie_word_embeddings", True),
        ({"eos_token_id": 2}, "eos_token_ids", {2}),
        ({"eos_token_id": [2, 5]}, "eos_token_ids", {2, 5}),
        ({"rope_theta": 500000}, "rope", RopeConfig(theta=500000.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope", RopeConfig(theta=1e6)),
        (
            {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope",
            RopeConfig(theta=1e5, kind="linear", factor=2.0),
        ),
        # Llama 3.1's own
        (
            {
                "rope_theta": 500000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            "rope",
            RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"model_type": "qwen2"}, "qkv_bias", True),
        ({"model_type": "qwen2"}, "o_bias", False),
        ({"attention_bias": True}, "qkv_bias", True),
        ({"attention_bias": True}, "o_bias", True),
        ({"mlp_bias": True}, "mlp_bias", True),
        # within its window, a sliding window changes nothing
        ({"model_type": "mistral", "sliding_window": 128}, "max_position_embeddings", 128),
        ({"model_type": "mistral", "sliding_window": None}, "max_position_embeddings", 512),
        ({"model_type": "qwen2", "sliding_window": 128}, "max_position_embeddings", 512),
        (
            {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True},
            "max_position_embeddings",
            128,
        ),
    ],
)
def test_what_a_config_says_is_read(changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(parse(**changes), field) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "'gemma3' is not supported; supported: Llama, Mistral and Qwen2"),
        ({"model_type": "", "architectures": ["FooForCausalLM"]}, "'FooForCausalLM' is not supported"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": ["x"]}}, "is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ],
)
def test_other_models_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "many"}, r"Expected `int`, got `str` - at `\$.vocab_size`"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"num_attention_heads": 0}, "num_heads=0"),
        ({"num_key_value_heads": 3}, "8 attention heads can't be shared evenly by 3"),
        ({"head_dim": 7}, "even head size, not 7"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope parameters"),
    ],
)
def test_nonsense_is_refused_with_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFilesInvalid, match=message):
        parse(**changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"model_type": "llama"}'])
def test_what_is_no_config_is_refused(data: bytes) -> None:
    with pytest.raises(ModelFilesInvalid, match=r"config\.json"):
        parse_hf_config(data)
