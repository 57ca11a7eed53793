"""From a request to a plan. A pure function of the request and the tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.errors import InvalidRequest
from gateway.planning import advice, flags, groups, report
from gateway.planning.budget import GIB, Budget, batched_tokens, memory_budget, splits
from gateway.planning.catalog import Catalog, Gpu, weights_of
from gateway.planning.pool import BlockPool, block_pool
from gateway.planning.precision import (
    KvPrecision,
    WeightPrecision,
    WeightSizes,
    kv_precision,
    weight_precision,
    weight_sizes,
)
from gateway.planning.request import BLOCK, MLA_BLOCK, PlanRequest, check_batch
from gateway.planning.result import Plan
from gateway.planning.roofline import Speed
from gateway.planning.shape import ModelShape
from gateway.planning.sources import resolve_model
from gateway.planning.workload import Workload


@dataclass(frozen=True, slots=True)
class Deployment:
    """The request with every name looked up and every default filled in."""

    shape: ModelShape
    gpu: Gpu
    gpus: int
    tensor_parallel: int
    weights: WeightPrecision
    sizes: WeightSizes
    kv: KvPrecision
    utilization: float
    reserve: int | None
    block_size: int
    batched_tokens: int
    workload: Workload

    @property
    def replicas(self) -> int:
        return self.gpus // self.tensor_parallel

    @property
    def wanted(self) -> int:
        """Requests at once in one replica."""
        return -(-self.workload.concurrency // self.replicas)

    @property
    def speed(self) -> Speed:
        return Speed.of(self.gpu, self.weights, self.tensor_parallel)

    def budget(self, *, weights: int | None = None, tensor_parallel: int | None = None) -> Budget:
        return memory_budget(
            self.shape,
            self.gpu,
            weights=self.sizes.total if weights is None else weights,
            utilization=self.utilization,
            tensor_parallel=tensor_parallel or self.tensor_parallel,
            tokens=self.batched_tokens,
            reserve=self.reserve,
        )

    def pool(self, kv: KvPrecision | None = None) -> BlockPool:
        return block_pool(
            self.shape,
            kv or self.kv,
            budget=self.budget().kv,
            block_size=self.block_size,
            tensor_parallel=self.tensor_parallel,
            batched_tokens=self.batched_tokens,
        )


def plan(request: PlanRequest, catalog: Catalog, *, read_files: bool = False) -> Plan:
    """Raises InvalidRequest for what makes no sense, DoesNotFit for what does not fit.

    `read_files` lets `request.model` be a path; otherwise it can only be a name of the table.
    """
    deployment = deploy(request, catalog, read_files=read_files)
    rows = groups.group_rows(deployment)
    if request.tensor_parallel is None:
        # where none fits, the largest group says best what is missing
        chosen = groups.best_group(rows) or rows[-1].tensor_parallel
        deployment = replace(deployment, tensor_parallel=chosen)
    pool = deployment.pool()
    if pool.longest(1) < 1:
        raise groups.too_small(deployment)
    lengths = advice.lengths(deployment, pool, request)
    advised = advice.sequences(deployment, pool, request, lengths)
    return report.build(
        deployment,
        pool,
        lengths,
        advised,
        precision=advice.precision(deployment, pool),
        flags=flags.build(
            deployment,
            max_model_len=lengths.max_model_len,
            max_num_seqs=advised.value,
            sglang_num_seqs=_sglang_sequences(deployment, request),
        ),
        groups=rows,
    )


def _sglang_sequences(deployment: Deployment, request: PlanRequest) -> int | None:
    """What SGLang's own cache holds, where it is of another precision; None where it is of the same."""
    kept = flags.sglang_kv(deployment)
    if request.max_num_seqs is not None or kept is deployment.kv:
        return request.max_num_seqs
    other = replace(deployment, kv=kept)
    return advice.capacity(other, other.pool()).value


def deploy(request: PlanRequest, catalog: Catalog, *, read_files: bool = False) -> Deployment:
    request.check()
    shape = resolve_model(request, catalog, read_files=read_files)
    gpu = _gpu(request, catalog)
    tensor_parallel = request.tensor_parallel or 1
    if not splits(shape, tensor_parallel):
        raise InvalidRequest(
            f"{shape.name} has {shape.heads} query heads and {_kv_heads(shape)} K/V heads:"
            f" they cannot be shared out over {tensor_parallel} GPUs",
            param="tensor_parallel",
        )
    tokens = request.max_num_batched_tokens or batched_tokens(gpu)
    if request.max_num_seqs is not None:
        check_batch(request.max_num_seqs, tokens)
    said = None if shape.weights_bytes else weights_of(request.model)
    weights = weight_precision(request.weights or said or shape.checkpoint)
    exact = shape.weights_bytes if request.weights in (None, shape.checkpoint) else None
    return Deployment(
        shape=shape,
        gpu=gpu,
        gpus=request.gpus or tensor_parallel,
        tensor_parallel=tensor_parallel,
        weights=weights,
        sizes=weight_sizes(shape, weights, exact),
        kv=kv_precision(request.kv, shape),
        utilization=request.gpu_memory_utilization,
        reserve=None if request.reserve_gib is None else int(request.reserve_gib * GIB),
        block_size=_block_size(request, shape, gpu),
        batched_tokens=tokens,
        workload=_workload(request, catalog),
    )


def _block_size(request: PlanRequest, shape: ModelShape, gpu: Gpu) -> int:
    """What the kernels take: on NVIDIA the index of sparse MLA has pages of 64 tokens and no other."""
    given = request.block_size
    if given is None:
        return MLA_BLOCK if shape.latent else BLOCK
    if shape.sparse_latent and gpu.vendor == "nvidia" and given % MLA_BLOCK:
        raise InvalidRequest(
            f"{shape.name} attends through an index whose pages are of {MLA_BLOCK} tokens: a block of {given}"
            " is no multiple of it, and vLLM refuses to start",
            param="block_size",
        )
    return given


def _kv_heads(shape: ModelShape) -> str:
    return " and ".join(sorted({str(each.kv.kv_heads) for each in shape.attention}))


def _gpu(request: PlanRequest, catalog: Catalog) -> Gpu:
    known = catalog.gpu(request.gpu) if request.gpu else None
    memory, bandwidth, tflops = request.gpu_memory_gib, request.gpu_bandwidth, request.gpu_tflops
    if known is not None and memory is None and bandwidth is None and tflops is None:
        return known
    return Gpu(
        name=known.name if known else "custom",
        title=f"{known.title}, figures given" if known else "GPU of given figures",
        memory_gb=known.memory_gb if known else (memory or 0) * GIB / 1e9,
        usable_gib=memory or (known.usable_gib if known else 0),
        bandwidth=bandwidth or (known.bandwidth if known else 0),
        bf16=tflops or (known.bf16 if known else 0),
        # fp8 units of a GPU whose figures were replaced are not known
        fp8=known.fp8 if known and tflops is None else None,
        product=known.product if known else "",
        source=known.source if known else "given",
        vendor=known.vendor if known else "nvidia",
    )


def _workload(request: PlanRequest, catalog: Catalog) -> Workload:
    base = catalog.scenario(request.scenario).workload()
    input_mean = base.input_mean if request.input_mean is None else request.input_mean
    output_mean = base.output_mean if request.output_mean is None else request.output_mean
    own = request.input_mean is not None or request.output_mean is not None

    def longest(given: int | None, scenario: int, mean: int, changed: int | None) -> int:
        # without the tail of one's own distribution, the scenario's tail is as far from its mean
        if given is not None:
            return given
        return scenario if changed is None else 2 * mean

    prefix = request.prefix
    if prefix is None:
        prefix = min(base.prefix, input_mean)
    workload = Workload(
        title="own figures" if own else base.title,
        input_mean=input_mean,
        input_longest=longest(request.input_longest, base.input_longest, input_mean, request.input_mean),
        output_mean=output_mean,
        output_longest=longest(request.output_longest, base.output_longest, output_mean, request.output_mean),
        prefix=prefix,
        concurrency=base.concurrency if request.concurrency is None else request.concurrency,
        ttft_target=base.ttft_target if request.ttft_target is None else request.ttft_target,
        itl_target=base.itl_target if request.itl_target is None else request.itl_target,
    )
    workload.check()
    return workload
