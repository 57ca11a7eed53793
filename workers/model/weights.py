"""A model's weights in memory, in the layout that the decoder multiplies with.

Every matrix is [out, in], C-contiguous, as checkpoints store it: `x @ w.T` reaches BLAS as a transposed GEMM
without a copy, and measures no slower than a stored transpose. Q, K and V are one matrix, gate and up are
another: fewer, larger multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from workers.model.config import ModelConfig
from workers.model.errors import ModelFilesInvalid
from workers.model.rope import F32

TensorSource: TypeAlias = Callable[[str], "F32 | None"]
"""Hugging Face tensor name → float32 array, or None where the checkpoint has no such tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """Biases are None where the architecture has none."""

    input_norm: F32  # [hidden]
    qkv: F32  # [(heads + 2 kv_heads) × head_dim, hidden]
    qkv_bias: F32 | None
    o: F32  # [hidden, heads × head_dim]
    o_bias: F32 | None
    post_norm: F32  # [hidden]
    gate_up: F32  # [2 × intermediate, hidden]
    gate_up_bias: F32 | None
    down: F32  # [hidden, intermediate]
    down_bias: F32 | None


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    embed: F32  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: F32  # [hidden]
    head: F32  # [vocab, hidden]; the same array as `embed` where they are tied

    def tensors(self) -> Iterator[tuple[str, F32]]:
        """Everything by name, a tied head once: what `weights_from_tensors` takes back."""
        yield "embed", self.embed
        yield "norm", self.norm
        if self.head is not self.embed:
            yield "head", self.head
        for i, layer in enumerate(self.layers):
            for field in fields(layer):
                if (tensor := getattr(layer, field.name)) is not None:
                    yield f"layers.{i}.{field.name}", tensor


def weights_from_tensors(tensors: dict[str, F32], num_layers: int) -> Weights:
    """The inverse of `Weights.tensors`. Raises KeyError for a tensor that is absent."""

    def layer(i: int) -> LayerWeights:
        named: dict[str, Any] = {}
        for name in (field.name for field in fields(LayerWeights)):
            key = f"layers.{i}.{name}"
            named[name] = tensors.get(key) if name.endswith("_bias") else tensors[key]
        return LayerWeights(**named)

    return Weights(
        embed=tensors["embed"],
        norm=tensors["norm"],
        head=tensors.get("head", tensors["embed"]),
        layers=tuple(layer(i) for i in range(num_layers)),
    )


def assemble(config: ModelConfig, source: TensorSource) -> Weights:
    """Asks `source` for every tensor that the architecture has. Raises ModelFilesInvalid for one that is
    absent or has another shape than config says."""
    c = config
    hidden, inter = c.hidden_size, c.intermediate_size
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

    def take(name: str, *shape: int) -> F32:
        tensor = source(name)
        if tensor is None:
            raise ModelFilesInvalid(f"the checkpoint has no tensor {name!r}")
        if tensor.shape != shape:
            raise ModelFilesInvalid(f"tensor {name!r} is {list(tensor.shape)}, the config says {list(shape)}")
        return np.ascontiguousarray(tensor, dtype=np.float32)

    def joined(prefix: str, parts: dict[str, int], suffix: str, *inner: int) -> F32:
        return np.concatenate(
            [take(f"{prefix}.{part}_proj.{suffix}", n, *inner) for part, n in parts.items()]
        )

    def layer(i: int) -> LayerWeights:
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        qkv, gate_up = {"q": q, "k": kv, "v": kv}, {"gate": inter, "up": inter}
        return LayerWeights(
            input_norm=take(f"model.layers.{i}.input_layernorm.weight", hidden),
            qkv=joined(attn, qkv, "weight", hidden),
            qkv_bias=joined(attn, qkv, "bias") if c.qkv_bias else None,
            o=take(f"{attn}.o_proj.weight", hidden, q),
            o_bias=take(f"{attn}.o_proj.bias", hidden) if c.o_bias else None,
            post_norm=take(f"model.layers.{i}.post_attention_layernorm.weight", hidden),
            gate_up=joined(mlp, gate_up, "weight", hidden),
            gate_up_bias=joined(mlp, gate_up, "bias") if c.mlp_bias else None,
            down=take(f"{mlp}.down_proj.weight", hidden, inter),
            down_bias=take(f"{mlp}.down_proj.bias", hidden) if c.mlp_bias else None,
        )

    embed = take("model.embed_tokens.weight", c.vocab_size, hidden)
    tied = c.tie_word_embeddings
    return Weights(
        embed=embed,
        layers=tuple(layer(i) for i in range(c.num_layers)),
        norm=take("model.norm.weight", hidden),
        head=embed if tied else take("lm_head.weight", c.vocab_size, hidden),
    )
