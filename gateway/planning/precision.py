"""Bytes of weights and of K/V at each precision, with what quantisation adds in scales."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gateway.errors import InvalidRequest
from gateway.planning.shape import LayerKv, ModelShape


@dataclass(frozen=True, slots=True)
class KvPrecision:
    name: str
    bits: int
    scale_bytes: int = 0
    """A token, head and side (K or V)."""


# vLLM keeps one float32 scale a token, head and side for int8 and int4 K/V (its triton attention backend);
# its fp8 has one scale a layer, which is nothing.
KV = {
    "fp16": KvPrecision("fp16", 16),
    "bf16": KvPrecision("bf16", 16),
    "fp8": KvPrecision("fp8", 8),
    "int8": KvPrecision("int8", 8, scale_bytes=4),
    "int4": KvPrecision("int4", 4, scale_bytes=4),
}

SPARSE_MLA_FP8_BYTES = 656
"""DeepSeek sparse attention's packed fp8 entry: 512 fp8, 4 float32 scales, 64 bf16 rotary elements."""


@dataclass(frozen=True, slots=True)
class WeightPrecision:
    name: str
    bits: Fraction
    """A weight of a quantised matrix, its share of scales included."""
    experts_only: bool = False
    fp8_math: bool = False
    """Multiplied on the fp8 units where the GPU has them; the others are widened to 16 bits first."""


WEIGHTS = {
    "bf16": WeightPrecision("bf16", Fraction(16)),
    "fp16": WeightPrecision("fp16", Fraction(16)),
    "fp8": WeightPrecision("fp8", Fraction(8), fp8_math=True),
    "int8": WeightPrecision("int8", Fraction(8)),
    # groups of 128 with a 16-bit scale and a 4-bit zero: AWQ's and GPTQ's usual form
    "int4": WeightPrecision("int4", 4 + Fraction(16 + 4, 128)),
    # blocks of 32 with an 8-bit exponent (OCP MX); gpt-oss has its experts alone in it
    "mxfp4": WeightPrecision("mxfp4", 4 + Fraction(8, 32), experts_only=True),
    # blocks of 16 with an fp8 scale
    "nvfp4": WeightPrecision("nvfp4", 4 + Fraction(8, 16), fp8_math=True),
}


def kv_precision(name: str, shape: ModelShape) -> KvPrecision:
    """Raises InvalidRequest for one that is not known, or that no engine has for such a model."""
    if name == "auto":
        return KV[shape.kv]
    if name not in KV:
        raise InvalidRequest(f"K/V precision {name!r} is not one of auto, {', '.join(KV)}", param="kv")
    if KV[name] not in offered(shape):
        raise InvalidRequest(
            f"vLLM and SGLang have no {name} for the latent K/V of {shape.name} (MLA): fp8 is what they offer"
            " below 16 bits",
            param="kv",
        )
    return KV[name]


def offered(shape: ModelShape) -> list[KvPrecision]:
    """Precisions in which engines keep this model's K/V: those with a scale a head need heads."""
    return [each for each in KV.values() if not (each.scale_bytes and shape.latent)]


def weight_precision(name: str) -> WeightPrecision:
    if name not in WEIGHTS:
        raise InvalidRequest(f"weight precision {name!r} is not one of {', '.join(WEIGHTS)}", param="weights")
    return WEIGHTS[name]


def layer_token_bytes(kv: LayerKv, precision: KvPrecision, tensor_parallel: int = 1) -> int:
    """Bytes that one GPU of the group keeps for one token in one layer.

    K/V heads are split over the group; with fewer heads than GPUs each GPU still holds one, so that the group
    as a whole holds copies. A latent vector (MLA) cannot be split: every GPU holds it.
    """
    if kv.latent and kv.index_bytes and precision.name == "fp8":
        return SPARSE_MLA_FP8_BYTES + kv.index_bytes
    heads = kv.kv_heads if kv.latent else max(1, kv.kv_heads // tensor_parallel)
    sides = 2 if kv.value_dim else 1
    content = -(-(kv.key_dim + kv.value_dim) * precision.bits // 8)
    return heads * (content + sides * precision.scale_bytes) + kv.index_bytes


def token_bytes(shape: ModelShape, precision: KvPrecision, tensor_parallel: int = 1) -> int:
    """Bytes a new token adds on one GPU, over all layers: 2 × layers × K/V heads × head size × bytes."""
    return sum(
        layers.count * layer_token_bytes(layers.kv, precision, tensor_parallel) for layers in shape.attention
    )


def sequence_bytes(shape: ModelShape, precision: KvPrecision, tokens: int, tensor_parallel: int = 1) -> int:
    """Bytes of one sequence of `tokens` on one GPU: a sliding layer keeps its window and no more."""
    total = 0
    for layers in shape.attention:
        kept = tokens if layers.kv.window is None else min(tokens, layers.kv.window)
        total += layers.count * kept * layer_token_bytes(layers.kv, precision, tensor_parallel)
    return total + state_bytes(shape, tensor_parallel)


def state_bytes(shape: ModelShape, tensor_parallel: int = 1) -> int:
    """Bytes a sequence of the linear-attention layers' state, on one GPU: convolution in 16 bits."""
    if shape.recurrent is None:
        return 0
    each = 2 * shape.recurrent.conv_elements + shape.recurrent.state_width * shape.recurrent.state_elements
    return shape.recurrent.count * each // tensor_parallel


def mha_token_bytes(shape: ModelShape, precision: KvPrecision) -> int:
    """What a token would cost if every query head had its own K and V in every layer."""
    layers = sum(each.count for each in shape.attention)
    content = (shape.score_dim + shape.mix_dim) * precision.bits // 8
    return layers * shape.heads * (content + 2 * precision.scale_bytes)


def mqa_token_bytes(shape: ModelShape, precision: KvPrecision) -> int:
    """What a token would cost if all query heads shared one K and V."""
    return mha_token_bytes(shape, precision) // shape.heads


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of a model's weights, by how a decode step reads them."""

    total: int
    table: int
    """The input table where the output projection is another: a step reads a few rows."""
    experts: int
    """Routed experts: a step reads those that were chosen."""


def weight_sizes(shape: ModelShape, precision: WeightPrecision, exact: int | None = None) -> WeightSizes:
    """Tables, norms and biases stay in 16 bits: engines do not quantise those. `exact` is the files' own
    total, where it is known; the parts then keep their proportions."""
    weights = shape.parameters
    packed = weights.experts + (0 if precision.experts_only else weights.dense)
    total = int(packed * precision.bits / 8) + 2 * (weights.total - packed)
    table = 2 * weights.embedding if weights.head else 0
    experts = int(weights.experts * precision.bits / 8)
    if exact is None:
        return WeightSizes(total, table, experts)
    return WeightSizes(exact, table * exact // total, experts * exact // total)
