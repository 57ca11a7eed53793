"""What to set, and why: the longest sequence, how many at once, which K/V precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest
from gateway.planning.budget import GIB
from gateway.planning.pool import BlockPool
from gateway.planning.precision import KV, token_bytes
from gateway.planning.request import DoesNotFit, PlanRequest
from gateway.planning.result import Advice
from gateway.planning.roofline import step_estimate
from gateway.planning.savings import cached_tokens

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

LENGTH_STEP = 256
MOST_SEQUENCES = 1024
"""vLLM's own default on its largest GPUs; more only costs captured graphs."""
UNBOUNDED = 1 << 24


@dataclass(frozen=True, slots=True)
class Lengths:
    max_model_len: int
    advice: Advice
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sequences:
    value: int
    by_memory: int
    advice: Advice
    warnings: tuple[str, ...]


def lengths(deployment: Deployment, pool: BlockPool, request: PlanRequest) -> Lengths:
    """As long as the workload's longest request, within what the model knows and the pool holds. Raises
    InvalidRequest where not even a mean request is within what the model knows."""
    known = deployment.shape.max_positions or UNBOUNDED
    if deployment.workload.mean_tokens > known:
        workload = deployment.workload
        raise InvalidRequest(
            f"a mean request has {workload.mean_tokens:,} tokens ({workload.input_mean:,} in,"
            f" {workload.output_mean:,} out) and {deployment.shape.name} knows {known:,} positions",
            param="input_mean",
        )
    fits = pool.longest(known)
    if request.max_model_len is not None:
        return _given(deployment, request.max_model_len, known=known, fits=fits)
    longest = deployment.workload.longest_tokens
    wanted = -(-longest // LENGTH_STEP) * LENGTH_STEP
    value = min(wanted, known, fits)
    warnings = []
    if value == fits < min(wanted, known):
        value = max(1, fits // deployment.block_size * deployment.block_size)
        reason = f"all that the K/V memory of one replica holds; the workload's longest is {longest:,}"
        warnings.append(
            f"requests above {value:,} tokens will be refused: the longest of the workload is {longest:,}."
            " More memory (tensor parallel), K/V in fp8 or smaller weights would take them"
        )
    elif value == known < wanted:
        reason = f"the model's own limit; the workload's longest is {longest:,}"
        warnings.append(
            f"{deployment.shape.name} knows {known:,} positions; the longest request has {longest:,}"
        )
    else:
        reason = (
            f"the workload's longest request ({deployment.workload.input_longest:,} in,"
            f" {deployment.workload.output_longest:,} out), rounded up; longer only invites requests that"
            " push others out"
        )
    return Lengths(value, Advice(what="max-model-len", value=f"{value:,}", reason=reason), tuple(warnings))


def _given(deployment: Deployment, value: int, *, known: int, fits: int) -> Lengths:
    if value > known:
        raise InvalidRequest(
            f"{deployment.shape.name} knows {known:,} positions, not {value:,}", param="max_model_len"
        )
    if value > fits:
        raise DoesNotFit(
            f"one sequence of {value:,} tokens does not fit: the K/V memory holds {fits:,}",
            param="max_model_len",
        )
    return Lengths(value, Advice(what="max-model-len", value=f"{value:,}", reason="as given"), ())


def memory_sequences(deployment: Deployment, pool: BlockPool) -> int:
    """Mean sequences at once in one replica, the common prefix held once."""
    workload = deployment.workload
    each = pool.held_by(workload.mean_tokens)
    shared = cached_tokens(workload.prefix, workload.input_mean, deployment.block_size)
    # a window's blocks are each sequence's own
    common = sum(shared // table.block_tokens for table in pool.tables if table.window is None)
    own = max(1, each - common)
    return max(0, (pool.usable - common) // own)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Mean sequences at once in one replica."""

    by_memory: int
    by_speed: int
    """Within the target between tokens; 0 if not even one is."""
    value: int
    """What to set: never less than 1, never more than a step has tokens."""


def capacity(deployment: Deployment, pool: BlockPool) -> Capacity:
    by_memory = memory_sequences(deployment, pool)
    limit = min(MOST_SEQUENCES, deployment.batched_tokens)
    by_speed = _within_target(deployment, limit=limit)
    # a target that one sequence misses already is no reason to batch less
    return Capacity(by_memory, by_speed, max(1, min(by_memory, by_speed or limit, limit)))


def sequences(deployment: Deployment, pool: BlockPool, request: PlanRequest, chosen: Lengths) -> Sequences:
    """As many mean sequences as memory holds, fewer where they would decode slower than asked."""
    room = capacity(deployment, pool)
    value, reason = room.value, _reason(deployment, room)
    if request.max_num_seqs is not None:
        value, reason = request.max_num_seqs, f"as given; memory holds {room.by_memory:,} mean sequences"
    return Sequences(
        value,
        room.by_memory,
        Advice(what="max-num-seqs", value=f"{value:,}", reason=reason),
        tuple(_crowding(deployment, room, value, pool.concurrency(chosen.max_model_len), chosen)),
    )


def _reason(deployment: Deployment, room: Capacity) -> str:
    limit = min(MOST_SEQUENCES, deployment.batched_tokens)
    if room.value == room.by_memory:
        return (
            f"sequences of {deployment.workload.mean_tokens:,} tokens that the K/V memory holds, prefix held"
            " once"
        )
    if 0 < room.by_speed < min(limit, room.by_memory):
        target = 1e3 * (deployment.workload.itl_target or 0)
        return f"more would decode slower than {target:g} ms a token; memory would hold {room.by_memory:,}"
    if room.by_memory < 1:
        return f"memory holds no sequence of {deployment.workload.mean_tokens:,} tokens; engines take one"
    if limit < MOST_SEQUENCES:
        return (
            f"a step has {limit:,} tokens (max-num-batched-tokens), one for each sequence; memory would hold"
            f" {room.by_memory:,}"
        )
    return f"memory holds {room.by_memory:,} mean sequences; more than {MOST_SEQUENCES:,} buys nothing"


def _crowding(
    deployment: Deployment, room: Capacity, value: int, at_most: float, chosen: Lengths
) -> list[str]:
    """Warnings where fewer requests than wanted go on at once."""
    wanted, target = deployment.wanted, 1e3 * (deployment.workload.itl_target or 0)
    warnings = []
    if room.by_speed == 0:
        warnings.append(
            f"a token takes longer than {target:g} ms even for one sequence: decode is bound by memory"
            " bandwidth. Smaller weights, more GPUs a replica or faster memory would help"
        )
    if room.by_memory < wanted:
        warnings.append(
            f"memory holds {room.by_memory:,} mean sequences a replica and {wanted:,} are wanted at once: the"
            " others wait, or push each other out (preemption)"
        )
    elif value < wanted:
        why = f"{value:,} meet the target" if value == room.by_speed else f"max-num-seqs is {value:,}"
        warnings.append(f"{wanted:,} requests at once a replica are wanted; {why}, others wait")
    if at_most < wanted:
        warnings.append(
            f"long context eats concurrency: of sequences of {chosen.max_model_len:,} tokens only"
            f" {at_most:.1f} fit at once, of mean ones {room.by_memory:,}"
        )
    return warnings


def _within_target(deployment: Deployment, *, limit: int) -> int:
    """The largest batch whose estimated step is within the ITL target; 0 if none is."""
    target = deployment.workload.itl_target
    if target is None:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if step_estimate(deployment, middle) <= target:
            low = middle
        else:
            high = middle - 1
    return low


def precision(deployment: Deployment, pool: BlockPool) -> Advice:
    """16 bits while they are enough; fp8 where memory is what limits."""
    wanted = deployment.wanted
    held = memory_sequences(deployment, pool)
    own = deployment.kv
    if own.bits <= 8:
        sixteen = memory_sequences(deployment, deployment.pool(KV["fp16"]))
        if sixteen >= wanted:
            return Advice(
                what="kv-precision",
                value="fp16",
                reason=f"16 bits already hold {sixteen:,} mean sequences for {wanted:,} wanted: {own.name}"
                " costs accuracy for room that nobody needs",
            )
        return Advice(
            what="kv-precision",
            value=own.name,
            reason=f"16 bits would hold {sixteen:,} mean sequences, {own.name} holds {held:,}; check your"
            " quality on it",
        )
    if held >= wanted:
        return Advice(
            what="kv-precision",
            value=own.name,
            reason=f"holds {held:,} mean sequences for {wanted:,} wanted: memory is not what limits",
        )
    smaller = memory_sequences(deployment, deployment.pool(KV["fp8"]))
    saved = token_bytes(deployment.shape, own) - token_bytes(deployment.shape, KV["fp8"])
    reason = (
        f"16 bits hold {held:,} mean sequences for {wanted:,} wanted, fp8 holds {smaller:,}"
        f" ({saved:,} B a token less to keep and to read); check your quality on it"
    )
    if deployment.gpu.fp8 is None:
        reason += f". {deployment.gpu.title} has no fp8 units: storage only, widened as it is read"
    if smaller < wanted:
        missing = _short(deployment, pool, wanted) / GIB
        reason += f". Not enough alone: {missing:.1f} GiB of K/V are missing at 16 bits"
    return Advice(what="kv-precision", value="fp8", reason=reason)


def _short(deployment: Deployment, pool: BlockPool, wanted: int) -> int:
    """Bytes on each GPU that the wanted sequences lack."""
    return max(0, (wanted * pool.held_by(deployment.workload.mean_tokens) - pool.usable) * pool.block_bytes)
