"""A finished plan: plain data, the same for a table, JSON and a plot. Bytes, tokens and seconds."""

from __future__ import annotations

import msgspec

from gateway.planning.savings import Reservation
from gateway.planning.workload import Workload


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    layers: int
    attention: str
    """MHA, GQA, MQA or MLA."""
    heads: int
    kv_heads: int
    parameters: int
    active_parameters: int
    weights: str
    """Precision of the weights."""
    weights_bytes: int
    """Of the whole model."""
    max_positions: int | None


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    memory_bytes: int
    bandwidth: float
    """Bytes/s."""
    flops: float
    """FLOP/s that the weights' precision can use, dense."""
    gpus: int
    tensor_parallel: int
    replicas: int
    product: str


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """On each GPU."""

    total: int
    usable: int
    weights: int
    activations: int
    runtime: int
    kv: int


class AttentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """K/V a token, if the heads shared it in this way."""

    kind: str
    kv_bytes_per_token: int
    times_own: float
    """Against the model's own."""
    own: bool


class PrecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    precision: str
    kv_bytes_per_token: int
    kv_tokens: int
    sequences: float
    """Of the workload's mean length at once, in one replica."""


class LengthRow(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int
    kv_bytes: int
    """Of one sequence, over all GPUs of a replica, copies not counted."""
    blocks: int
    sequences: float
    """At once, in one replica; below 1: it does not fit."""
    known: bool
    """Whether the model knows so many positions."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to share the GPUs: `replicas` groups of `tensor_parallel`. Figures are of one replica."""

    tensor_parallel: int
    replicas: int
    wanted: int
    """Requests at once."""
    fits: bool
    """Holds the weights and the workload's longest request; without, the figures below are 0."""
    sequences: int = 0
    """Mean ones at once, by memory and by the target between tokens."""
    by_memory: int = 0
    ttft_warm: float = 0.0
    """Estimates, in seconds, as in Latency."""
    itl_loaded: float = 0.0
    meets: bool = False
    """All of the workload at once, within its targets."""


class PrefixSaving(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int
    """Served from cache, of each prompt but the first."""
    blocks: int
    sequences: int
    """At once in one replica, that share it."""
    memory_bytes: int
    """Saved on each GPU: held once in place of once a sequence."""
    prefill_share: float
    """Of a mean prompt's prefill arithmetic that is not done again."""
    prefill_seconds: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, for the mean request alone unless said otherwise: at the published peaks (`bound`), and at the
    shares of them that engines reach (`estimate`)."""

    ttft_cold_bound: float
    ttft_cold: float
    ttft_warm_bound: float
    ttft_warm: float
    ttft_longest: float
    """Cold, of the longest prompt."""
    itl_bound: float
    """One sequence."""
    itl: float
    itl_loaded: float
    """At `max_num_seqs`, or at the workload's concurrency if that is less."""
    loaded_sequences: int
    compute_efficiency: float
    bandwidth_efficiency: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    value: str
    reason: str


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    vllm: list[str]
    sglang: list[str]
    values: str
    """YAML for the Helm chart, with vLLM …"""
    sglang_values: str
    """… and with SGLang."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    kv_precision: str
    """fp16 stands for 16 bits of either kind."""
    kv_bytes_per_token: int
    """What one more token adds over all layers, in one copy."""
    kv_bytes_per_token_long: int
    """… once the sequence is longer than every sliding window."""
    kv_bytes_per_token_per_gpu: int
    kv_bytes_per_block: int
    """`block_size` tokens, in one copy."""
    kv_blocks: int
    """In one replica's pool: the engine's num_gpu_blocks."""
    kv_block_bytes_per_gpu: int
    """Of one block of that pool: kv_bytes_per_block on one GPU, unless the model mixes kinds of layers."""
    kv_tokens: int
    """In one replica: what the engine prints as its K/V cache size."""
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    concurrency_at_max_model_len: float
    model: ModelFacts
    gpu: GpuFacts
    memory: Memory
    attention: list[AttentionRow]
    precisions: list[PrecisionRow]
    lengths: list[LengthRow]
    groups: list[GroupRow]
    """Every even sharing of the GPUs; gpu.tensor_parallel names the one that was planned."""
    reservation: Reservation
    prefix: PrefixSaving
    latency: Latency
    workload: Workload
    advice: list[Advice]
    warnings: list[str]
    notes: list[str]
    flags: Flags
