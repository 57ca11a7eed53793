"""Where a GPU's memory goes, and what is left for K/V."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.planning.catalog import Gpu
from gateway.planning.shape import ModelShape

GIB = 2**30
RUNTIME_BYTES = GIB // 2
"""CUDA context, libraries, allocator slack: 0.3–0.6 GiB in engines' own reports."""
GRAPH_BYTES = GIB // 2
"""Captured CUDA graphs, which engines count before they size the cache."""
COMMUNICATION_BYTES = 400 * 2**20
"""Buffers of collectives, where there is more than one GPU."""
SAMPLED_SEQUENCES = 256
"""Sequences whose logits are held in float32, twice, while engines measure their peak."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes on each GPU."""

    total: int
    usable: int
    """total × gpu-memory-utilization."""
    weights: int
    activations: int
    runtime: int

    @property
    def kv(self) -> int:
        return self.usable - self.weights - self.activations - self.runtime


def batched_tokens(gpu: Gpu) -> int:
    """vLLM's default of max-num-batched-tokens when it serves HTTP (its arg_utils, 0.32)."""
    if gpu.usable_gib >= 160:
        return 16384
    return 8192 if gpu.usable_gib >= 70 and "a100" not in gpu.title.lower() else 2048


def activation_bytes(shape: ModelShape, tokens: int, tensor_parallel: int) -> int:
    """Bytes at the peak of one step over `tokens`: residual and attention streams, the MLP's two halves and
    their product, all in 16 bits, and the logits. An estimate, set beside engines' logs in docs/plan.md."""
    stream = 4 * shape.hidden + 3 * shape.mlp_width // tensor_parallel
    return 2 * tokens * stream + 2 * 4 * SAMPLED_SEQUENCES * shape.vocabulary


def memory_budget(
    shape: ModelShape,
    gpu: Gpu,
    *,
    weights: int,
    utilization: float,
    tensor_parallel: int,
    tokens: int,
    reserve: int | None = None,
) -> Budget:
    """`weights` in bytes for the whole model; `reserve`, in bytes a GPU, replaces the estimates of
    activations and runtime."""
    total = int(gpu.usable_gib * GIB)
    runtime = RUNTIME_BYTES + GRAPH_BYTES + (COMMUNICATION_BYTES if tensor_parallel > 1 else 0)
    activations = activation_bytes(shape, tokens, tensor_parallel)
    return Budget(
        total=total,
        usable=int(total * utilization),
        weights=-(-weights // tensor_parallel),
        activations=activations if reserve is None else 0,
        runtime=runtime if reserve is None else reserve,
    )


def splits(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether the heads can be shared out evenly over so many GPUs."""
    if shape.heads % tensor_parallel:
        return False
    return all(
        each.kv.latent or each.kv.kv_heads % tensor_parallel == 0 or tensor_parallel % each.kv.kv_heads == 0
        for each in shape.attention
    )
