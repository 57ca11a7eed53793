"""Models whose layers differ: which of them keep K/V, and what is refused rather than counted wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.planning.config import shape_from_config
from gateway.planning.pool import block_pool
from gateway.planning.precision import KV, sequence_bytes, state_bytes, token_bytes
from gateway.planning.roofline import prefill_flops
from gateway.planning.shape import ModelShape

GIB = 2**30
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 32,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
MINIMAX_01 = {
    "model_type": "minimax_text_01",
    "attn_type_list": ([0] * 7 + [1]) * 10,
    "head_dim": 128,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "max_position_embeddings": 10240000,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "vocab_size": 200064,
}
EXAONE_4 = {
    "model_type": "exaone4",
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "max_position_embeddings": 131072,
    "vocab_size": 102400,
}
SCOUT = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "vocab_size": 202048,
    "max_position_embeddings": 10485760,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1, 1, 1, 0] * 12,
}
MAVERICK = SCOUT | {"num_local_experts": 128, "interleave_moe_layer_step": 2, "no_rope_layers": []}


def read(config: dict[str, Any], **changes: Any) -> ModelShape:
    return shape_from_config(config | changes, name="model", source="by hand")


def test_kimi_linear_keeps_a_latent_in_7_of_27_layers_and_a_state_in_the_others() -> None:
    found = read(KIMI_LINEAR)
    assert token_bytes(found, KV["bf16"]) == 7 * (512 + 64) * 2 == 8_064
    # 20 layers: a convolution of 3 places over q, k and v of 32 × 128, and 32 matrices in float32
    assert state_bytes(found) == 20 * (2 * 3 * 4096 * 3 + 4 * 32 * 128 * 128)
    assert found.parameters.total / 1e9 == pytest.approx(49.1, abs=0.05)
    assert found.max_positions == 1_048_576


def test_minimax_text_01_keeps_kv_in_10_of_80_layers() -> None:
    found = read(MINIMAX_01)
    assert token_bytes(found, KV["bf16"]) == 10 * 2 * 8 * 128 * 2 == 40_960
    assert state_bytes(found) == 70 * 2 * 64 * 128 * 128
    # published: 456 B, of which 45.9 B a token (the tables not counted)
    assert found.parameters.total / 1e9 == pytest.approx(456, abs=0.2)
    tables = found.parameters.embedding + found.parameters.head
    assert (found.parameters.active - tables) / 1e9 == pytest.approx(45.9, abs=0.1)


def test_exaone_4_spells_its_pattern() -> None:
    layers = sorted((each.count, each.kv.window or 0) for each in read(EXAONE_4).attention)
    assert layers == [(16, 0), (48, 4096)]
    listed = ["sliding_attention"] * 3 + ["full_attention"]
    assert read(EXAONE_4, layer_types=listed * 16).attention == read(EXAONE_4).attention
    # the last layer sees everything, wherever the pattern ends
    assert [each.count for each in read(EXAONE_4, num_hidden_layers=6).attention] == [2, 4]
    with pytest.raises(InvalidRequest, match="'LLXG' is not of L and G"):
        read(EXAONE_4, sliding_window_pattern="LLXG")


def test_qwen3_next_keeps_its_state_in_16_bits() -> None:
    """vLLM 0.32 keeps it in the model's own type unless the config names another, as Qwen3.5's does."""
    config = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 151936,
    }
    state, conv = 32 * 128 * 128, (2 * 16 * 128 + 32 * 128) * 3
    assert token_bytes(read(config), KV["bf16"]) == 12 * 2 * 2 * 256 * 2
    assert state_bytes(read(config)) == 36 * (2 * conv + 2 * state)
    assert state_bytes(read(config, mamba_ssm_dtype="float32")) == 36 * (2 * conv + 4 * state)


@pytest.mark.parametrize(
    ("config", "total", "idle"),
    [
        (SCOUT, 107_769_861_120, 48 * 15 * 3 * 5120 * 8192),
        (MAVERICK, 400_711_848_960, 24 * 127 * 3 * 5120 * 8192),
    ],
    ids=["scout", "maverick"],
)
def test_llama_4_has_a_shared_expert_and_dense_layers_of_their_own(
    config: dict[str, Any], total: int, idle: int
) -> None:
    """Totals are transformers' own; of the routed experts 15 of 16 or 127 of 128 idle. Published: 109 and
    400 B with the vision part, 17 B active."""
    found = read(config)
    assert found.parameters.total == total
    assert found.parameters.active == total - idle
    assert found.parameters.active / 1e9 == pytest.approx(17.2, abs=0.05)


def test_chunked_layers_keep_their_chunk() -> None:
    found = read(SCOUT)
    layer = 2 * 8 * 128 * 2
    assert sorted((each.count, each.kv.window or 0) for each in found.attention) == [(12, 0), (36, 8192)]
    assert sequence_bytes(found, KV["bf16"], 32768) == 12 * layer * 32768 + 36 * layer * 8192
    assert read(MAVERICK).attention == found.attention


@pytest.mark.parametrize(
    ("length", "batched", "concurrency"), [(131072, 8192, 2.13328125), (32768, 2048, 6.274356617647059)]
)
def test_chunked_layers_take_the_blocks_that_vllm_gives_them(
    length: int, batched: int, concurrency: float
) -> None:
    """vLLM 0.32.0's `get_kv_cache_configs` for 12 full layers and 36 with chunks of 8,192, 20 GiB."""
    pool = block_pool(read(SCOUT), KV["bf16"], budget=20 * GIB, batched_tokens=batched)
    assert (pool.blocks, len(pool.tables)) == (27_306, 4)
    assert pool.concurrency(length) == pytest.approx(concurrency, rel=1e-12)


def test_a_chunk_sees_itself_alone() -> None:
    """20,000 tokens in chunks of 8,192: two triangles of 8,192 and one of 3,616, in 36 of 48 layers."""
    scout, full = read(SCOUT), read(SCOUT, attention_chunk_size=None)
    spared = 20_000 * 20_001 / 2 - 2 * (8192 * 8193 / 2) - 3616 * 3617 / 2
    assert prefill_flops(full, 20_000) - prefill_flops(scout, 20_000) == pytest.approx(
        36 * 2 * 40 * 2 * 128 * spared
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 15}, "layers that share K/V"),
        ({"block_configs": [{}]}, "layers that differ so"),
        ({"attn_layer_period": 8}, "state-space"),
        ({"conv_L_cache": 3}, "state-space and convolutional"),
        ({"layer_group_size": 5}, "linear-attention"),
        ({"cross_attention_layers": [3, 8]}, "attend to images"),
        ({"attn_type_list": [0, 1]}, "attn_type_list names 2 of 64 layers"),
        ({"attn_type_list": "0101"}, "attn_type_list is no list of numbers"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types names 3 of 64 layers"),
        ({"layer_types": ["linear_attention", "full_attention"] * 32}, "state of its linear-attention"),
    ],
)
def test_what_is_not_counted_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(EXAONE_4, **changes)


def test_fields_that_say_none_are_no_refusal() -> None:
    found = read(EXAONE_4, num_kv_shared_layers=0, cross_attention_layers=[], layer_group_size=1)
    assert found.attention == read(EXAONE_4).attention
