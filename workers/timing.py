"""How long one step takes on a given GPU: a pure model, for engines that compute nothing.

Roofline (Williams et al., CACM 2009): a step takes as long as the slower of its arithmetic and its memory
traffic, plus what it costs to launch.

    arithmetic  2 · P · tokens + 4 · L · H · D · pairs                    FLOPs
    traffic     weight bytes + K/V bytes a token · context                bytes
    step        max(arithmetic / (peak · efficiency), traffic / (bandwidth · efficiency)) + overhead

P parameters, L layers, H query heads of size D. `tokens` are fed in this step, `pairs` counts (query, visible
key) over all of them, `context` counts the keys that attention reads. The forward pass costs 2 FLOPs a
parameter and token and 4 · H · D FLOPs a layer and pair, two for the score and two for the weighted sum
(Chowdhery et al., "PaLM", 2022, appendix B: 6N + 12LHQT a token with the backward pass, which is twice the
forward). Prefill has many tokens for one reading of the weights, hence is compute-bound; decode has one a
sequence, hence is bound by bandwidth (Pope et al., "Efficiently Scaling Transformer Inference", 2022).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

StepShape = tuple[int, int]
"""(tokens fed, tokens before them) of one sequence in one step."""


class Timing(Protocol):
    def step_seconds(self, shapes: Iterable[StepShape]) -> float:
        """Modelled duration of one step; 0 for an empty one."""
        ...

    def decode_seconds(self, sequences: int, context: int) -> float:
        """The same where each of `sequences` feeds one token and together they read `context` tokens, their
        own included."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTiming:
    """So much a prompt token, so much a step: figures of one's own choice, in seconds.

    A sequence that feeds one token decodes; it costs nothing beyond the step.
    """

    prefill_token_s: float = 0.0
    step_s: float = 0.0

    def step_seconds(self, shapes: Iterable[StepShape]) -> float:
        counts = [count for count, _start in shapes]
        if not counts:
            return 0.0
        return self.step_s + self.prefill_token_s * sum(count for count in counts if count > 1)

    def decode_seconds(self, sequences: int, context: int) -> float:
        return self.step_s if sequences else 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model decides its speed. `kv_bytes` and `weight_bytes` are bytes an element."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        """One K and one V vector for each K/V head and layer."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_bytes

    @property
    def total_weight_bytes(self) -> float:
        return self.parameters * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by its data sheet: dense bf16 FLOP/s, memory bytes/s, memory bytes."""

    flops: float
    bandwidth: float
    memory: float


@dataclass(frozen=True, slots=True)
class RooflineTiming:
    """`gpus` of a kind share the model (tensor parallel). Efficiencies: the share of the data sheet's figures
    that kernels reach. `overhead_s` a step: scheduling, launches, all-reduces, sampling."""

    model: Model
    gpu: Gpu
    gpus: int = 1
    compute_efficiency: float = 0.5
    memory_efficiency: float = 0.8
    overhead_s: float = 0.003
    _flops_a_token: float = field(init=False, repr=False, compare=False)
    _flops_a_pair: float = field(init=False, repr=False, compare=False)
    _flops_a_second: float = field(init=False, repr=False, compare=False)
    _weights: float = field(init=False, repr=False, compare=False)
    _bytes_a_token: float = field(init=False, repr=False, compare=False)
    _bytes_a_second: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a replay asks for hundreds of thousands of steps
        model, gpu = self.model, self.gpu
        for name, value in (
            ("_flops_a_token", 2 * model.parameters),
            ("_flops_a_pair", 4 * model.layers * model.heads * model.head_size),
            ("_flops_a_second", gpu.flops * self.gpus * self.compute_efficiency),
            ("_weights", model.total_weight_bytes),
            ("_bytes_a_token", model.kv_bytes_per_token),
            ("_bytes_a_second", gpu.bandwidth * self.gpus * self.memory_efficiency),
        ):
            object.__setattr__(self, name, value)

    def step_seconds(self, shapes: Iterable[StepShape]) -> float:
        tokens = pairs = context = 0
        for count, start in shapes:
            tokens += count
            # the i-th of them sees the `start` before it, i-1 of its own step, and itself
            pairs += count * start + count * (count + 1) // 2
            context += start + count
        return self._seconds(tokens, pairs, context)

    def decode_seconds(self, sequences: int, context: int) -> float:
        return self._seconds(sequences, context, context)

    def _seconds(self, tokens: int, pairs: int, context: int) -> float:
        if not tokens:
            return 0.0
        compute_s = (self._flops_a_token * tokens + self._flops_a_pair * pairs) / self._flops_a_second
        memory_s = (self._weights + self._bytes_a_token * context) / self._bytes_a_second
        return (compute_s if compute_s > memory_s else memory_s) + self.overhead_s

    def num_blocks(self, block_size: int, *, utilization: float = 0.92, reserve: float = 2 * 2**30) -> int:
        """K/V blocks that fit beside the weights and `reserve` bytes a GPU for activations. `utilization` is
        the share of memory that the engine may take (vLLM's default)."""
        room = self.gpu.memory * self.gpus * utilization
        room -= self.model.total_weight_bytes + reserve * self.gpus
        return max(0, int(room / (block_size * self.model.kv_bytes_per_token)))
