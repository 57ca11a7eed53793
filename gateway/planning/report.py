"""Puts a plan together: figures of what was decided, in tables that people compare by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.planning import flags as engine_flags
from gateway.planning import long_prompts
from gateway.planning.advice import Lengths, Sequences, memory_sequences
from gateway.planning.groups import better_group
from gateway.planning.pool import BlockPool
from gateway.planning.precision import (
    KV,
    layer_token_bytes,
    mha_token_bytes,
    mqa_token_bytes,
    offered,
    sequence_bytes,
    token_bytes,
)
from gateway.planning.result import (
    Advice,
    AttentionRow,
    Flags,
    GpuFacts,
    GroupRow,
    Latency,
    LengthRow,
    Memory,
    ModelFacts,
    Plan,
    PrecisionRow,
    PrefixSaving,
)
from gateway.planning.roofline import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    prefill_flops,
    prefill_seconds,
    step_bound,
    step_estimate,
    ttft_estimate,
)
from gateway.planning.savings import cached_tokens, reservation
from gateway.planning.shape import AttentionKind

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

LENGTHS = (1024, 4096, 8192, 32768, 131072)


def build(
    deployment: Deployment,
    pool: BlockPool,
    lengths: Lengths,
    sequences: Sequences,
    *,
    precision: Advice,
    flags: Flags,
    groups: list[GroupRow],
) -> Plan:
    shape, workload = deployment.shape, deployment.workload
    per_token = token_bytes(shape, deployment.kv)
    concurrency = pool.concurrency(lengths.max_model_len)
    latency = _latency(deployment, sequences)
    kv_tokens = _tokens(deployment, pool, lengths.max_model_len)
    return Plan(
        kv_precision=deployment.kv.name,
        kv_bytes_per_token=per_token,
        kv_bytes_per_token_long=_growth(deployment),
        kv_bytes_per_token_per_gpu=token_bytes(shape, deployment.kv, deployment.tensor_parallel),
        kv_bytes_per_block=deployment.block_size * per_token,
        kv_blocks=pool.blocks,
        kv_block_bytes_per_gpu=pool.block_bytes,
        kv_tokens=kv_tokens,
        block_size=deployment.block_size,
        max_model_len=lengths.max_model_len,
        max_num_seqs=sequences.value,
        max_num_batched_tokens=deployment.batched_tokens,
        gpu_memory_utilization=deployment.utilization,
        concurrency_at_max_model_len=concurrency,
        model=_model(deployment),
        gpu=_gpu(deployment),
        memory=_memory(deployment),
        attention=_attention(deployment),
        precisions=[_precision_row(deployment, name, lengths.max_model_len) for name in _names(deployment)],
        lengths=[_length(deployment, pool, tokens) for tokens in LENGTHS],
        groups=groups,
        reservation=reservation(
            workload.concurrency,
            lengths.max_model_len,
            min(workload.mean_tokens, lengths.max_model_len),
            deployment.block_size,
        ),
        prefix=_prefix(deployment, pool, sequences),
        latency=latency,
        workload=workload,
        advice=[
            lengths.advice,
            sequences.advice,
            *long_prompts.advise(deployment, lengths.max_model_len, kv_tokens),
            precision,
        ],
        warnings=[
            *lengths.warnings,
            *sequences.warnings,
            *better_group(groups, deployment.tensor_parallel),
            *_slow(deployment, latency),
            *engine_flags.unsupported(deployment),
        ],
        notes=[*_notes(deployment), *engine_flags.to_set(deployment)],
        flags=flags,
    )


def _names(deployment: Deployment) -> list[str]:
    return [each.name for each in offered(deployment.shape) if each.name != "bf16"]


def _tokens(deployment: Deployment, pool: BlockPool, max_model_len: int) -> int:
    """Alike layers: every block is so many tokens. Mixed ones: how many depends on the sequences' length, and
    engines state it at the longest."""
    if not deployment.shape.hybrid:
        return pool.blocks * deployment.block_size
    return int(pool.concurrency(max_model_len) * max_model_len)


def _growth(deployment: Deployment) -> int:
    return sum(
        each.count * layer_token_bytes(each.kv, deployment.kv)
        for each in deployment.shape.attention
        if each.kv.window is None
    )


def _model(deployment: Deployment) -> ModelFacts:
    shape = deployment.shape
    return ModelFacts(
        name=shape.name,
        source=shape.source,
        layers=shape.layers,
        attention=shape.kind.value,
        heads=shape.heads,
        kv_heads=max(each.kv.kv_heads for each in shape.attention),
        parameters=shape.parameters.total,
        active_parameters=shape.parameters.active,
        weights=_weights(deployment),
        weights_bytes=deployment.sizes.total,
        max_positions=shape.max_positions,
    )


def _weights(deployment: Deployment) -> str:
    """Files say themselves how many bits a weight takes, quantised in whatever way."""
    if deployment.sizes.total != deployment.shape.weights_bytes:
        return deployment.weights.name
    return f"{8 * deployment.sizes.total / deployment.shape.parameters.total:.2f} bits a weight (files)"


def _gpu(deployment: Deployment) -> GpuFacts:
    one = deployment.speed
    return GpuFacts(
        name=deployment.gpu.title,
        source=deployment.gpu.source,
        memory_bytes=deployment.budget().total,
        bandwidth=one.bandwidth / deployment.tensor_parallel,
        flops=one.flops / deployment.tensor_parallel,
        gpus=deployment.gpus,
        tensor_parallel=deployment.tensor_parallel,
        replicas=deployment.replicas,
        product=deployment.gpu.product,
    )


def _memory(deployment: Deployment) -> Memory:
    budget = deployment.budget()
    return Memory(
        total=budget.total,
        usable=budget.usable,
        weights=budget.weights,
        activations=budget.activations,
        runtime=budget.runtime,
        kv=budget.kv,
    )


def _attention(deployment: Deployment) -> list[AttentionRow]:
    own = token_bytes(deployment.shape, deployment.kv)
    figures = {
        AttentionKind.MHA: mha_token_bytes(deployment.shape, deployment.kv),
        AttentionKind.MQA: mqa_token_bytes(deployment.shape, deployment.kv),
        deployment.shape.kind: own,
    }
    return [
        AttentionRow(
            kind=kind.value,
            kv_bytes_per_token=figures[kind],
            times_own=figures[kind] / own,
            own=kind is deployment.shape.kind,
        )
        for kind in AttentionKind
        if kind in figures
    ]


def _precision_row(deployment: Deployment, name: str, max_model_len: int) -> PrecisionRow:
    pool = deployment.pool(KV[name])
    return PrecisionRow(
        precision=name,
        kv_bytes_per_token=token_bytes(deployment.shape, KV[name]),
        kv_tokens=_tokens(deployment, pool, max_model_len),
        sequences=memory_sequences(deployment, pool),
    )


def _length(deployment: Deployment, pool: BlockPool, tokens: int) -> LengthRow:
    return LengthRow(
        tokens=tokens,
        kv_bytes=sequence_bytes(deployment.shape, deployment.kv, tokens),
        blocks=pool.blocks_for(tokens),
        sequences=pool.concurrency(tokens),
        known=tokens <= (deployment.shape.max_positions or tokens),
    )


def _prefix(deployment: Deployment, pool: BlockPool, sequences: Sequences) -> PrefixSaving:
    workload = deployment.workload
    wanted = deployment.wanted
    sharing = max(1, min(sequences.value, wanted))
    tokens = cached_tokens(workload.prefix, workload.input_mean, deployment.block_size)
    common = sum(tokens // table.block_tokens for table in pool.tables if table.window is None)
    cold = prefill_flops(deployment.shape, workload.input_mean)
    saved = cold - prefill_flops(deployment.shape, workload.input_mean, tokens)
    return PrefixSaving(
        tokens=tokens,
        blocks=common,
        sequences=sharing,
        memory_bytes=(sharing - 1) * common * pool.block_bytes,
        prefill_share=saved / cold,
        prefill_seconds=saved / deployment.speed.flops / COMPUTE_EFFICIENCY,
    )


def _latency(deployment: Deployment, sequences: Sequences) -> Latency:
    shape, workload, speed = deployment.shape, deployment.workload, deployment.speed
    weights = deployment.sizes
    cached = cached_tokens(workload.prefix, workload.input_mean, deployment.block_size)

    def prefill(tokens: int, cached: int) -> float:
        return prefill_seconds(shape, speed, tokens=tokens, cached=cached, weights=weights)

    loaded = min(sequences.value, deployment.wanted)
    return Latency(
        ttft_cold_bound=prefill(workload.input_mean, 0),
        ttft_cold=ttft_estimate(deployment, workload.input_mean, 0),
        ttft_warm_bound=prefill(workload.input_mean, cached),
        ttft_warm=ttft_estimate(deployment, workload.input_mean, cached),
        ttft_longest=ttft_estimate(deployment, workload.input_longest, 0),
        itl_bound=step_bound(deployment, 1),
        itl=step_estimate(deployment, 1),
        itl_loaded=step_estimate(deployment, loaded),
        loaded_sequences=loaded,
        compute_efficiency=COMPUTE_EFFICIENCY,
        bandwidth_efficiency=BANDWIDTH_EFFICIENCY,
    )


def _slow(deployment: Deployment, latency: Latency) -> list[str]:
    target = deployment.workload.ttft_target
    if target is None:
        return []
    if latency.ttft_warm > target:
        return [
            f"the first token of a mean prompt takes about {latency.ttft_warm:.2f} s even with its prefix in"
            f" cache, above the target of {target:g} s"
        ]
    if latency.ttft_cold > target:
        return [
            f"the first token of a mean prompt takes about {latency.ttft_cold:.2f} s cold and"
            f" {latency.ttft_warm:.2f} s with its prefix in cache: the target of {target:g} s is met warm"
        ]
    return []


def _notes(deployment: Deployment) -> list[str]:
    notes = list(deployment.shape.notes)
    widest = max(each.kv.kv_heads for each in deployment.shape.attention)
    if any(each.kv.latent for each in deployment.shape.attention) and deployment.tensor_parallel > 1:
        notes.append(
            f"MLA's K/V has no heads to split: each of the {deployment.tensor_parallel} GPUs holds all of it"
            " (data-parallel attention avoids that)"
        )
    elif widest < deployment.tensor_parallel:
        notes.append(
            f"{widest} K/V heads over {deployment.tensor_parallel} GPUs: each head is held"
            f" {deployment.tensor_parallel // widest} times"
        )
    if any(each.kv.window is not None for each in deployment.shape.attention):
        notes.append(
            "sliding-window layers keep their window only; kv_tokens is for sequences of max_model_len, as"
            " engines print it"
        )
    if deployment.tensor_parallel > 1:
        notes.append("times leave out the exchange between GPUs")
    return notes
