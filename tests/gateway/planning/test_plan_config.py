"""Models from files: config.json, folders, GGUF; and what is refused."""

from __future__ import annotations

import importlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.planning.catalog import Catalog
from gateway.planning.config import shape_from_config
from gateway.planning.gguf import config_from_metadata
from gateway.planning.precision import KV, WEIGHTS, token_bytes, weight_sizes
from gateway.planning.request import PlanRequest
from gateway.planning.sources import resolve_model, shape_from_path

QWEN2 = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def shape(**changes: Any):  # type: ignore[no-untyped-def]
    return shape_from_config(QWEN2 | changes, name="model", source="by hand")


def test_a_config_file_is_the_built_in_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    found = shape_from_path(tmp_path / "config.json")
    assert found.parameters.total == 7_615_616_512
    assert token_bytes(found, KV["fp16"]) == 57_344
    assert found.weights_bytes is None


def test_a_folder_knows_its_weights_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    header = json.dumps({"a": {"dtype": "BF16", "shape": [500], "data_offsets": [0, 1000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1000))
    assert shape_from_path(tmp_path).weights_bytes == 1000
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 15231233024}}')
    assert shape_from_path(tmp_path).weights_bytes == 15_231_233_024


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    gguf = importlib.import_module("gguf")
    numpy = importlib.import_module("numpy")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(2048)
    writer.add_vocab_size(256)
    writer.add_tensor("token_embd.weight", numpy.zeros((256, 64), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = shape_from_path(path)
    assert token_bytes(found, KV["fp16"]) == 2 * 2 * 2 * 16 * 2
    assert found.weights_bytes == 256 * 64 * 2
    assert found.max_positions == 2048


def test_gguf_metadata_of_a_windowed_and_of_a_latent_model() -> None:
    gemma = config_from_metadata(
        {
            "general.architecture": "gemma3",
            "gemma3.block_count": 26,
            "gemma3.embedding_length": 1152,
            "gemma3.feed_forward_length": 6912,
            "gemma3.attention.head_count": 4,
            "gemma3.attention.head_count_kv": 1,
            "gemma3.attention.key_length": 256,
            "gemma3.attention.sliding_window": 512,
            "gemma3.context_length": 32768,
            "gemma3.vocab_size": 262144,
        },
        tied=True,
    )
    found = shape_from_config(gemma, name="gemma", source="")
    assert found.parameters.total == 999_885_952
    assert sorted((each.count, each.kv.window) for each in found.attention if each.kv.window) == [(22, 512)]
    deepseek = config_from_metadata(
        {
            "general.architecture": "deepseek2",
            "deepseek2.block_count": 27,
            "deepseek2.embedding_length": 2048,
            "deepseek2.feed_forward_length": 10944,
            "deepseek2.attention.head_count": 16,
            "deepseek2.attention.head_count_kv": 16,
            "deepseek2.attention.key_length": 192,
            "deepseek2.attention.value_length": 128,
            "deepseek2.attention.kv_lora_rank": 512,
            "deepseek2.rope.dimension_count": 64,
            "deepseek2.expert_count": 64,
            "deepseek2.expert_used_count": 6,
            "deepseek2.expert_shared_count": 2,
            "deepseek2.expert_feed_forward_length": 1408,
            "deepseek2.leading_dense_block_count": 1,
            "deepseek2.vocab_size": 102400,
        },
        tied=False,
    )
    found = shape_from_config(deepseek, name="deepseek", source="")
    assert found.parameters.total == 15_706_484_224
    assert token_bytes(found, KV["bf16"]) == 27 * 576 * 2


def test_a_multimodal_config_is_read_for_its_text_part() -> None:
    found = shape_from_config(
        {"model_type": "vlm", "tie_word_embeddings": False, "text_config": QWEN2}, name="vlm", source=""
    )
    assert token_bytes(found, KV["fp16"]) == 57_344
    assert found.notes == ("multimodal: weights of its vision or audio part are not counted",)


def test_qwen_windows_count_only_when_they_are_switched_on() -> None:
    assert [each.kv.window for each in shape().attention] == [None]
    on = shape(use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    assert sorted((each.count, each.kv.window or 0) for each in on.attention) == [(8, 4096), (20, 0)]


@pytest.mark.parametrize(
    ("quantization", "checkpoint"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4"),
    ],
)
def test_what_a_checkpoint_is_quantised_to(quantization: dict[str, Any], checkpoint: str) -> None:
    assert shape(quantization_config=quantization).checkpoint == checkpoint


def test_weights_by_precision() -> None:
    """Qwen2-7B: two tables of 152,064 × 3,584 and its biases and norms stay in 16 bits."""
    found = shape()
    packed = found.parameters.dense
    assert packed == 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944)
    assert weight_sizes(found, WEIGHTS["bf16"]).total == 2 * 7_615_616_512
    assert weight_sizes(found, WEIGHTS["fp8"]).total == packed + 2 * (7_615_616_512 - packed)
    # a step reads one row of the input table; files that were measured keep the proportions
    assert weight_sizes(found, WEIGHTS["bf16"]).table == 2 * 152_064 * 3584
    assert weight_sizes(found, WEIGHTS["bf16"], exact=7_615_616_512).table == 152_064 * 3584
    # 4 bits, and a 16-bit scale and a 4-bit zero for each 128
    assert weight_sizes(found, WEIGHTS["int4"]).total == int(packed * (4 + 20 / 128) / 8) + 2 * (
        7_615_616_512 - packed
    )


def test_gpt_oss_checkpoints_have_their_published_size() -> None:
    """12.8 and 60.8 GiB (the model card of gpt-oss, arXiv:2508.10925)."""
    catalog = Catalog.builtin()
    for name, gib in (("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)):
        found = catalog.model(name).shape()
        assert weight_sizes(found, WEIGHTS[found.checkpoint]).total / 2**30 == pytest.approx(gib, abs=0.06)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "config has no num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": "big"}, "hidden_size is 'big', not a whole number"),
        ({"num_key_value_heads": 30}, "30 K/V heads for 28 query heads"),
        ({"layer_types": ["hologram"] * 28}, "layer type 'hologram' is not known"),
        ({"num_hidden_layers": 10**12}, "more than 10000 layers"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "8 experts a token of 4"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"model_type": "mamba"}, "mamba keeps a recurrent state"),
        ({"model_type": "rwkv"}, "rwkv keeps a recurrent state"),
    ],
)
def test_configs_that_cannot_be_counted_are_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        shape(**changes)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("not json")
    (tmp_path / "broken.gguf").write_bytes(b"nothing")
    with pytest.raises(InvalidRequest, match=r"is not a config\.json"):
        shape_from_path(tmp_path)
    with pytest.raises(InvalidRequest, match="is not a GGUF file"):
        shape_from_path(tmp_path / "broken.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match=r"has no config\.json"):
        shape_from_path(tmp_path / "empty")


def test_paths_are_read_only_where_files_may_be(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    request = PlanRequest(model=str(tmp_path))
    catalog = Catalog.builtin()
    assert resolve_model(request, catalog, read_files=True).parameters.total == 7_615_616_512
    with pytest.raises(InvalidRequest, match="no model"):
        resolve_model(request, catalog, read_files=False)
    with pytest.raises(InvalidRequest, match="no file"):
        resolve_model(PlanRequest(model="./nowhere"), catalog, read_files=True)
