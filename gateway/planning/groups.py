"""Ways to share the GPUs there are: how many hold one copy of the model, and how many copies follow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.planning.advice import capacity
from gateway.planning.budget import GIB, splits
from gateway.planning.pool import block_pool
from gateway.planning.precision import weight_precision, weight_sizes
from gateway.planning.request import DoesNotFit
from gateway.planning.result import GroupRow
from gateway.planning.roofline import step_estimate, ttft_estimate
from gateway.planning.savings import cached_tokens

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

MOST_GPUS = 64


def group_rows(deployment: Deployment) -> list[GroupRow]:
    """Every even sharing of the GPUs that the model's heads allow, smallest groups first."""
    return [
        _row(replace(deployment, tensor_parallel=count))
        for count in range(1, min(deployment.gpus, MOST_GPUS) + 1)
        if deployment.gpus % count == 0 and splits(deployment.shape, count)
    ]


def _row(deployment: Deployment) -> GroupRow:
    workload = deployment.workload
    wanted = deployment.wanted
    if not holds(deployment, deployment.tensor_parallel):
        return GroupRow(
            tensor_parallel=deployment.tensor_parallel,
            replicas=deployment.replicas,
            wanted=wanted,
            fits=False,
        )
    room = capacity(deployment, deployment.pool())
    loaded = min(room.value, wanted)
    cached = cached_tokens(workload.prefix, workload.input_mean, deployment.block_size)
    first = ttft_estimate(deployment, workload.input_mean, cached)
    on_time = workload.ttft_target is None or first <= workload.ttft_target
    return GroupRow(
        tensor_parallel=deployment.tensor_parallel,
        replicas=deployment.replicas,
        wanted=wanted,
        fits=True,
        sequences=room.value,
        by_memory=room.by_memory,
        ttft_warm=first,
        itl_loaded=step_estimate(deployment, loaded),
        meets=room.value >= wanted and room.by_speed > 0 and on_time,
    )


def best_group(rows: list[GroupRow]) -> int | None:
    """The smallest group that meets the workload; failing that, the smallest whose memory holds it; failing
    that, the one that holds most in all. None where the model fits none."""
    fitting = [row for row in rows if row.fits]
    for enough in (
        [row for row in fitting if row.meets],
        [row for row in fitting if row.by_memory >= row.wanted],
    ):
        if enough:
            return enough[0].tensor_parallel
    most = max(fitting, key=lambda row: (row.replicas * row.sequences, -row.tensor_parallel), default=None)
    return most.tensor_parallel if most else None


def better_group(rows: list[GroupRow], chosen: int) -> list[str]:
    """A warning where another sharing meets the workload and the chosen one does not."""
    if any(row.meets for row in rows if row.tensor_parallel == chosen):
        return []
    meeting = next((row for row in rows if row.meets), None)
    if meeting is None:
        return []
    return [
        f"{meeting.replicas} replica(s) of {meeting.tensor_parallel} GPUs would meet the workload:"
        f" {meeting.sequences:,} sequences each for {meeting.wanted:,} wanted"
    ]


def holds(deployment: Deployment, tensor_parallel: int, weights: int | None = None) -> bool:
    """Whether such a group holds the weights and the workload's longest request."""
    shape = deployment.shape
    if not splits(shape, tensor_parallel):
        return False
    pool = block_pool(
        shape,
        deployment.kv,
        budget=deployment.budget(weights=weights, tensor_parallel=tensor_parallel).kv,
        block_size=deployment.block_size,
        tensor_parallel=tensor_parallel,
        batched_tokens=deployment.batched_tokens,
    )
    longest = min(
        deployment.workload.longest_tokens, shape.max_positions or deployment.workload.longest_tokens
    )
    return pool.longest(longest) == longest


def gpus_needed(deployment: Deployment, *, weights: int | None = None) -> int | None:
    """The smallest tensor-parallel group that holds the weights and the workload's longest request."""
    return next((n for n in range(1, MOST_GPUS + 1) if holds(deployment, n, weights)), None)


def too_small(deployment: Deployment) -> DoesNotFit:
    budget = deployment.budget()
    needed = gpus_needed(deployment)
    room = budget.usable - budget.activations - budget.runtime
    group = deployment.tensor_parallel
    message = (
        f"{deployment.shape.name} does not fit: {deployment.weights.name} weights take"
        f" {budget.weights / GIB:.1f} GiB on {'one' if group == 1 else f'each of {group}'}"
        f" {deployment.gpu.title},"
        f" where {max(0, room) / GIB:.1f} GiB are left for weights and K/V"
        f" ({deployment.utilization:.0%} of {budget.total / GIB:.1f} GiB, less"
        f" {(budget.activations + budget.runtime) / GIB:.1f} GiB for activations and runtime)."
    )
    if needed is not None:
        message += f" It needs {needed} of them (tensor parallel {needed})"
    else:
        message += f" Not even {MOST_GPUS} of them would do"
    best = needed
    for name in ("fp8", "int4"):
        smaller = weight_sizes(deployment.shape, weight_precision(name)).total
        if smaller < deployment.sizes.total:
            fewer = gpus_needed(deployment, weights=smaller)
            if fewer is not None and (best is None or fewer < best):
                message += f", or {fewer} with {name} weights"
                best = fewer
    return DoesNotFit(message + ".", param="gpus", gpus_needed=needed)
