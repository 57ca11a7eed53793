"""Reads a GGUF file's metadata into a ModelShape. Needs the `gguf` library (extra `engine`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.errors import InvalidRequest, MissingExtra
from gateway.planning.config import shape_from_config
from gateway.planning.shape import ModelShape

_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
}
"""GGUF's architecture names and Hugging Face's model types."""


def shape_from_gguf(path: Path) -> ModelShape:
    """The weights' size is exact: the sum of the file's tensors."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtra("reading GGUF files", "engine") from error
    try:
        reader = GGUFReader(path)
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"{path} is not a GGUF file: {error}", param="model") from error
    metadata = {name: field.contents() for name, field in reader.fields.items() if name.count(".") >= 1}
    weights = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    fields = config_from_metadata(metadata, tied=tied)
    name = str(metadata.get("general.name") or path.stem)
    shape = shape_from_config(fields, name=name, source=str(path), weights_bytes=weights)
    if parameters != shape.parameters.total:
        # the file is the better witness, as with rope tables that some converters store
        difference = parameters - shape.parameters.total
        return replace(
            shape, parameters=replace(shape.parameters, other=max(0, shape.parameters.other + difference))
        )
    return shape


def config_from_metadata(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """The config.json fields that a GGUF's metadata amounts to."""
    architecture = str(metadata.get("general.architecture", ""))
    if architecture not in _TYPES:
        raise InvalidRequest(
            f"GGUF architecture {architecture!r} is not one of {', '.join(_TYPES)}", param="model"
        )

    def get(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    vocabulary = get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ()))
    kv_heads = get("attention.head_count_kv")
    if isinstance(kv_heads, list):
        kinds = sorted(set(kv_heads))
        if len(kinds) != 1:
            raise InvalidRequest(f"GGUF with different K/V heads a layer ({kinds})", param="model")
        kv_heads = kinds[0]
    fields = {
        "model_type": _TYPES[architecture],
        "num_hidden_layers": get("block_count"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": kv_heads,
        "head_dim": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "sliding_window": get("attention.sliding_window"),
        "vocab_size": vocabulary,
        "num_experts" if architecture != "deepseek2" else "n_routed_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "tie_word_embeddings": tied,
    }
    if architecture == "deepseek2":
        rope = get("rope.dimension_count")
        key_length = get("attention.key_length_mla") or get("attention.key_length")
        fields |= {
            "head_dim": None,
            "kv_lora_rank": get("attention.kv_lora_rank"),
            "q_lora_rank": get("attention.q_lora_rank"),
            "qk_rope_head_dim": rope,
            "qk_nope_head_dim": key_length - rope,
            "v_head_dim": get("attention.value_length_mla") or get("attention.value_length"),
            "n_shared_experts": get("expert_shared_count"),
            "first_k_dense_replace": get("leading_dense_block_count"),
        }
    return {key: value for key, value in fields.items() if value is not None}
