"""What a plan is asked for, as a command line or an admin endpoint says it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import InvalidRequest

BLOCK, MLA_BLOCK = 16, 64
"""vLLM's default, and what its fast MLA kernels take (FlashMLA 64, FlashInfer 32 and 64)."""


class DoesNotFit(InvalidRequest):
    """The request makes sense, and the memory is too small for it."""

    def __init__(self, message: str, *, param: str | None = None, gpus_needed: int | None = None) -> None:
        super().__init__(message, param=param)
        self.gpus_needed = gpus_needed
        """The smallest group that would hold it; None where none up to 64 does."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names are those of the built-in tables. None is filled from a table, a scenario or a default."""

    model: str = ""
    """A name, or a path where the caller may read files."""
    config: dict[str, Any] | None = None
    """The fields of a config.json in place of a name."""
    gpu: str = ""
    gpu_memory_gib: float | None = None
    """Explicit figures replace the table's, or stand without a GPU's name."""
    gpu_bandwidth: float | None = None
    """GB/s."""
    gpu_tflops: float | None = None
    """Dense, 16 bits."""
    gpus: int | None = None
    """All GPUs there are; a multiple of tensor_parallel. Default: one group."""
    tensor_parallel: int | None = None
    weights: str | None = None
    """A name in precision.WEIGHTS; default: what the checkpoint holds."""
    kv: str = "auto"
    """A name in precision.KV; auto is what engines keep unless they are told: fp8 where the checkpoint was
    calibrated for it, 16 bits otherwise."""
    gpu_memory_utilization: float = 0.9
    reserve_gib: float | None = None
    """Memory a GPU that is neither weights nor K/V, in place of the estimate."""
    block_size: int | None = None
    """Tokens; default: 16, and 64 for MLA, whose kernels want it."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    scenario: str = "chat"
    input_mean: int | None = None
    input_longest: int | None = None
    output_mean: int | None = None
    output_longest: int | None = None
    prefix: int | None = None
    concurrency: int | None = None
    ttft_target: float | None = None
    itl_target: float | None = None

    def check(self) -> None:
        """Raises InvalidRequest, naming the field, for figures that mean nothing."""
        for name in ("gpu_memory_gib", "gpu_bandwidth", "gpu_tflops"):
            self._positive(name)
        for name in ("gpus", "tensor_parallel", "block_size", "max_model_len", "max_num_seqs"):
            self._positive(name)
        self._positive("max_num_batched_tokens")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest(
                f"gpu_memory_utilization is a share above 0 and up to 1, not {self.gpu_memory_utilization}",
                param="gpu_memory_utilization",
            )
        if self.reserve_gib is not None and not 0 <= self.reserve_gib < float("inf"):
            raise InvalidRequest(f"reserve_gib cannot be {self.reserve_gib}", param="reserve_gib")
        if self.block_size is not None and (self.block_size % 8 or self.block_size > 1024):
            raise InvalidRequest("block_size is a multiple of 8 up to 1024", param="block_size")
        tensor_parallel = self.tensor_parallel or 1
        if self.gpus is not None and self.gpus % tensor_parallel:
            raise InvalidRequest(
                f"{self.gpus} GPUs cannot be shared out in groups of {tensor_parallel}", param="gpus"
            )
        if bool(self.model) == (self.config is not None):
            raise InvalidRequest("name a model or give its config, one of the two", param="model")
        if not self.gpu and None in (self.gpu_memory_gib, self.gpu_bandwidth, self.gpu_tflops):
            raise InvalidRequest(
                "name a GPU, or give its memory, bandwidth and TFLOP/s, all three", param="gpu"
            )

    def _positive(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not 0 < value < float("inf"):
            raise InvalidRequest(f"{name} must be above 0, not {value}", param=name)


def check_batch(sequences: int, tokens: int) -> None:
    """Engines refuse to start with more sequences than a step has tokens: each decodes one."""
    if sequences > tokens:
        raise InvalidRequest(
            f"max_num_seqs ({sequences:,}) is above max_num_batched_tokens ({tokens:,}): engines refuse that,"
            " since each sequence decodes one token a step",
            param="max_num_seqs",
        )
