"""Configs of many families: weights as transformers' own classes count them, K/V by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.planning.config import shape_from_config
from gateway.planning.precision import KV, token_bytes

FALCON_7B = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
    "parallel_attn": True,
    "vocab_size": 65024,
}
FALCON_40B = FALCON_7B | {
    "num_hidden_layers": 60,
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "vocab_size": 50257,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_layer": 40,
    "n_head": 48,
    "n_embd": 6144,
    "n_inner": 24576,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
}
MPT_7B = {
    "model_type": "mpt",
    "n_layers": 32,
    "n_heads": 32,
    "d_model": 4096,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50432,
}
DBRX = {
    "model_type": "dbrx",
    "n_layers": 40,
    "n_heads": 48,
    "d_model": 6144,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}
OPT_125M = {
    "model_type": "opt",
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
}
BLOOM_7B = {"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096, "vocab_size": 250880}
NEOX_20B = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "vocab_size": 50432,
}
GLM4_9B = {
    "model_type": "chatglm",
    "num_layers": 40,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "seq_length": 131072,
    "padded_vocab_size": 151552,
    "add_qkv_bias": True,
}
# of four layers and no model's: every trait of a family is in the count
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [
        # one K/V head of 64: multi-query
        (FALCON_7B, 6_921_720_704, 32 * 2 * 64 * 2),
        (FALCON_40B, 41_303_293_952, 60 * 2 * 8 * 64 * 2),
        (GPT2, 124_439_808, 12 * 2 * 12 * 64 * 2),
        (STARCODER, 15_517_456_384, 40 * 2 * 1 * 128 * 2),
        (MPT_7B, 6_649_286_656, 32 * 2 * 32 * 128 * 2),
        (DBRX, 131_596_523_520, 40 * 2 * 8 * 128 * 2),
        (OPT_125M, 125_239_296, 12 * 2 * 12 * 64 * 2),
        (BLOOM_7B, 7_069_016_064, 30 * 2 * 32 * 128 * 2),
        (NEOX_20B, 20_554_567_680, 44 * 2 * 64 * 96 * 2),
        (GLM4_9B, 9_399_951_360, 40 * 2 * 2 * 128 * 2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_older_names_of_the_same_fields(config: dict[str, Any], parameters: int, kv_bytes: int) -> None:
    found = shape_from_config(config, name="model", source="")
    assert found.parameters.total == parameters
    assert token_bytes(found, KV["fp16"]) == kv_bytes
    assert not any("not one that was checked" in note for note in found.notes)


@pytest.mark.parametrize(
    ("model_type", "changes", "parameters"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}, 2_750_208),
        ("qwen2", {}, 2_744_064),
        ("qwen3", {}, 4_709_632),
        ("gemma", {}, 7_330_048),
        ("gemma2", {"tie_word_embeddings": None}, 7_076_096),
        ("gemma3_text", {}, 7_334_144),
        ("cohere", {}, 2_741_504),
        ("cohere", {"use_qk_norm": True}, 2_742_784),
        ("cohere2", {"tie_word_embeddings": None}, 2_485_504),
        ("stablelm", {}, 2_744_832),
        ("stablelm", {"use_qkv_bias": True}, 2_746_368),
        ("phi", {}, 2_225_128),
        ("starcoder2", {}, 2_226_176),
        ("nemotron", {}, 2_220_544),
        ("arcee", {}, 2_218_240),
        ("olmo2", {}, 2_743_808),
        ("exaone4", {}, 2_742_784),
        ("seed_oss", {}, 4_714_752),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, 7_465_216),
        ("qwen3_moe", {"num_experts": 4, **MOE}, 2_746_880),
        ("qwen2_moe", {"num_experts": 4, "shared_expert_intermediate_size": 128, **MOE}, 3_142_400),
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}, 7_488_304),
        # transformers keeps the routers' correction in a buffer: 4 for each of 3 and of 4 layers
        (
            "glm4_moe",
            {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 64, **MOE},
            3_695_872 + 12,
        ),
        ("minimax_m2", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64}, 8_123_136 + 16),
        (
            "llama4_text",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 1024,
                "head_dim": 32,
            },
            6_676_736,
        ),
    ],
)
def test_biases_norms_and_gates_of_each_family(
    model_type: str, changes: dict[str, Any], parameters: int
) -> None:
    """The numbers are those of transformers 5.24's classes, built on the meta device."""
    fields = SMALL | changes | {"model_type": model_type}
    assert shape_from_config(fields, name="model", source="").parameters.total == parameters


def test_a_family_that_was_not_checked_is_said_to_be_so() -> None:
    found = shape_from_config(SMALL | {"model_type": "foo"}, name="model", source="")
    assert found.notes == ("model type 'foo' is not one that was checked: counted as if it were a Llama",)


def test_gemma_3_takes_from_its_class_what_the_published_config_leaves_out() -> None:
    """google/gemma-3-4b-it names neither its heads nor its vocabulary: 8 heads, 4 of K/V, of 256."""
    published = {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    found = shape_from_config(published, name="gemma-3-4b", source="")
    assert found.parameters.total == 3_880_263_168
    assert token_bytes(found, KV["bf16"]) == 34 * 2 * 4 * 256 * 2
    assert sorted((each.count, each.kv.window or 0) for each in found.attention) == [(5, 0), (29, 1024)]
    assert "num_attention_heads" in found.notes[1]


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "xlm-roberta"])
def test_an_encoder_keeps_no_kv_and_is_refused(model_type: str) -> None:
    with pytest.raises(InvalidRequest, match="is an encoder, it keeps no K/V"):
        shape_from_config(SMALL | {"model_type": model_type}, name="model", source="")


def test_kv_heads_that_do_not_divide_the_query_heads_are_refused() -> None:
    fields = SMALL | {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 7}
    with pytest.raises(InvalidRequest, match="7 K/V heads for 32 query heads"):
        shape_from_config(fields, name="model", source="")
