"""Times that follow from arithmetic and bandwidth alone.

Prefill is bound by arithmetic: 2 FLOPs a weight and token, and 2 × (K + V elements) a head for each
query-key pair. Decode is bound by memory: every step reads the weights once and the K/V of every sequence
(roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009; its application to decoding: Pope et al.,
"Efficiently Scaling Transformer Inference", 2022). Communication between GPUs and queueing are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.planning.catalog import Gpu
from gateway.planning.precision import KvPrecision, WeightPrecision, WeightSizes, sequence_bytes
from gateway.planning.shape import LayerKv, ModelShape

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

COMPUTE_EFFICIENCY = 0.45
BANDWIDTH_EFFICIENCY = 0.75
"""Shares of the published peaks that engines reach, roughly, on large GPUs."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One tensor-parallel group."""

    flops: float
    """FLOP/s."""
    bandwidth: float
    """Bytes/s."""

    @classmethod
    def of(cls, gpu: Gpu, weights: WeightPrecision, tensor_parallel: int) -> Speed:
        peak = gpu.fp8 if weights.fp8_math and gpu.fp8 is not None else gpu.bf16
        return cls(peak * 1e12 * tensor_parallel, gpu.bandwidth * 1e9 * tensor_parallel)


def prefill_flops(shape: ModelShape, tokens: int, cached: int = 0) -> float:
    """To compute the last `tokens - cached` positions of a prompt of `tokens`, and one output."""
    new = tokens - cached
    weights = shape.parameters
    linear = 2.0 * new * (weights.dense + weights.active_experts) + 2.0 * weights.output
    pairs = 0.0
    for layers in shape.attention:
        pairs += layers.count * _pairs(tokens, cached, layers.kv)
    return linear + 2.0 * shape.heads * (shape.score_dim + shape.mix_dim) * pairs


def _pairs(tokens: int, cached: int, kv: LayerKv) -> float:
    """Query-key pairs under a causal mask: position p sees p + 1 keys, or its window, or its chunk so far."""

    def triangle(n: int) -> float:
        return n * (n + 1) / 2

    def below(n: int) -> float:
        if kv.window is None or n <= kv.window:
            return triangle(n)
        if kv.chunked:
            return n // kv.window * triangle(kv.window) + triangle(n % kv.window)
        return triangle(kv.window) + (n - kv.window) * kv.window

    return below(tokens) - below(cached)


def prefill_seconds(
    shape: ModelShape, speed: Speed, *, tokens: int, cached: int, weights: WeightSizes
) -> float:
    """At least the arithmetic, at least one reading of the weights."""
    return max(prefill_flops(shape, tokens, cached) / speed.flops, weights.total / speed.bandwidth)


def decode_seconds(
    shape: ModelShape,
    speed: Speed,
    kv: KvPrecision,
    *,
    batch: int,
    context: int,
    weights: WeightSizes,
    tensor_parallel: int,
) -> float:
    """One step of `batch` sequences of `context` tokens. K/V that a group holds in copies is read so."""
    cache = tensor_parallel * sequence_bytes(shape, kv, context, tensor_parallel)
    read = weights.total - weights.table - weights.experts * _untouched(shape, batch) + batch * cache
    parameters = shape.parameters
    linear = 2.0 * batch * (parameters.dense + parameters.active_experts + parameters.output)
    pairs = sum(each.count * min(context, each.kv.window or context) for each in shape.attention)
    scores = 2.0 * batch * shape.heads * (shape.score_dim + shape.mix_dim) * pairs
    return max(read / speed.bandwidth, (linear + scores) / speed.flops)


def _untouched(shape: ModelShape, batch: int) -> float:
    """Share of the experts that no token of the batch chose, if they choose evenly."""
    if not shape.experts_total:
        return 0.0
    return (1 - shape.experts_per_token / shape.experts_total) ** batch


def step_bound(deployment: Deployment, batch: int) -> float:
    """Seconds of one decode step of `batch` mean sequences in one replica, at the published peaks."""
    return decode_seconds(
        deployment.shape,
        deployment.speed,
        deployment.kv,
        batch=batch,
        context=deployment.workload.mean_tokens,
        weights=deployment.sizes,
        tensor_parallel=deployment.tensor_parallel,
    )


def step_estimate(deployment: Deployment, batch: int) -> float:
    return step_bound(deployment, batch) / BANDWIDTH_EFFICIENCY


def ttft_estimate(deployment: Deployment, tokens: int, cached: int) -> float:
    """Seconds to the first token of a prompt of `tokens`, of which `cached` are in the cache."""
    speed = deployment.speed
    arithmetic = prefill_flops(deployment.shape, tokens, cached) / speed.flops / COMPUTE_EFFICIENCY
    return max(arithmetic, deployment.sizes.total / speed.bandwidth / BANDWIDTH_EFFICIENCY)
