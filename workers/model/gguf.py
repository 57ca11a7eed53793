"""Loads a GGUF file (llama.cpp's format) of arch llama or qwen2; quantised tensors become float32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize

from workers.model.config import SUPPORTED, ModelConfig
from workers.model.errors import ModelFilesInvalid, UnsupportedModel
from workers.model.rope import F32, RopeConfig
from workers.model.weights import TensorSource, Weights, assemble

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_TENSOR = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def load_gguf(path: Path) -> tuple[ModelConfig, Weights]:
    """Raises UnsupportedModel, ModelFilesInvalid. Slow: seconds, for the reader walks every token."""
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise ModelFilesInvalid(f"{path} is not a sound GGUF file, or was cut off: {error}") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(reader, tensors)
    return config, assemble(config, _tensor_source(config, tensors))


def gguf_name(hf_name: str) -> str:
    if layer := _LAYER_TENSOR.fullmatch(hf_name):
        return f"blk.{layer[1]}.{_NAMES[layer[2]]}.{layer[3]}"
    stem, _, kind = hf_name.rpartition(".")
    return f"{_NAMES[stem]}.{kind}"


def _tensor_source(config: ModelConfig, tensors: dict[str, ReaderTensor]) -> TensorSource:
    def read(hf_name: str) -> F32 | None:
        tensor = tensors.get(gguf_name(hf_name))
        if tensor is None:
            return None
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if config.model_type == "llama" and ".q_proj." in hf_name:
            return _halves_from_pairs(values, config.num_heads)
        if config.model_type == "llama" and ".k_proj." in hf_name:
            return _halves_from_pairs(values, config.num_kv_heads)
        return values

    return read


def _halves_from_pairs(weight: F32, heads: int) -> F32:
    """llama.cpp rotates neighbours (0,1), (2,3)… of a llama head and reorders Q and K rows for it when it
    converts a checkpoint. Undo that: our rope rotates element j of the first half with j of the second."""
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


class _Metadata:
    """The `arch.`-prefixed fields of a file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader
        self.arch: str = self.get("general.architecture", "", prefixed=False)

    def get(self, key: str, default: Any = None, *, prefixed: bool = True) -> Any:
        field = self._reader.get_field(f"{self.arch}.{key}" if prefixed else key)
        return default if field is None else field.contents()

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int):
            raise ModelFilesInvalid(f"GGUF metadata {self.arch}.{key} should be one integer, is {value!r}")
        return value


def _config(reader: GGUFReader, tensors: dict[str, ReaderTensor]) -> ModelConfig:
    meta = _Metadata(reader)
    if meta.arch not in ("llama", "qwen2"):
        raise UnsupportedModel(f"GGUF architecture {meta.arch!r} is not supported; {SUPPORTED}")
    if meta.get("expert_count", 0):
        raise UnsupportedModel(f"mixtures of experts are not supported; {SUPPORTED}")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFilesInvalid("the GGUF file has no tensor 'token_embd.weight'")
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // max(heads, 1))
    if meta.integer("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel("partial rotary embedding is not supported")
    return ModelConfig(
        model_type=meta.arch,
        vocab_size=int(embedding.shape[1]),
        hidden_size=hidden,
        intermediate_size=meta.integer("feed_forward_length"),
        num_layers=meta.integer("block_count"),
        num_heads=heads,
        num_kv_heads=meta.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=meta.integer("context_length"),
        rms_norm_eps=float(meta.get("attention.layer_norm_rms_epsilon", 1e-6)),
        rope=_rope(meta, tensors),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        eos_token_ids=_ends(meta),
    )


def _rope(meta: _Metadata, tensors: dict[str, ReaderTensor]) -> RopeConfig:
    scaling = meta.get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise UnsupportedModel(f"rope scaling {scaling!r} is not supported; supported: none, linear, llama3")
    divisors = tensors.get("rope_freqs.weight")
    return RopeConfig(
        theta=float(meta.get("rope.freq_base", 10000.0)),
        kind="linear" if scaling == "linear" else "default",
        factor=float(meta.get("rope.scaling.factor", 1.0)),
        divisors=() if divisors is None else tuple(float(d) for d in divisors.data),
    )


def _ends(meta: _Metadata) -> frozenset[int]:
    ids = (meta.get(f"tokenizer.ggml.{kind}_token_id", prefixed=False) for kind in ("eos", "eot"))
    return frozenset(int(i) for i in ids if i is not None)
