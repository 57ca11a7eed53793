"""The plan as engine flags and chart values. Names are those of vLLM 0.32 and 0.33, and of SGLang 0.5.23."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import yaml

from gateway.planning.long_prompts import threshold
from gateway.planning.precision import KV, KvPrecision
from gateway.planning.request import MLA_BLOCK
from gateway.planning.result import Flags

if TYPE_CHECKING:
    from gateway.planning.planner import Deployment

_VLLM_KV = {"fp8": "fp8", "int8": "int8_per_token_head", "int4": "int4_per_token_head"}
_SGLANG_KV = {"fp8": "fp8_e4m3"}
_ROCM = {
    "vllm": {"repository": "vllm/vllm-openai-rocm"},
    "sglang": {"repository": "lmsysorg/sglang", "tag": "SET-A-ROCM-TAG"},
}
"""vLLM builds its releases for ROCm under a name of its own, SGLang under tags that name ROCm's version and
the GPU: which one there is must be looked up, and the chart's own would be CUDA's."""
MODEL_TO_SET = "SET/THE NAME OR PATH THAT THE ENGINE LOADS"
"""In place of a path on this machine. With its blanks, it is neither a repository nor a likely path."""
_EVENTS = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv-events"}
_ENDPOINTS = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}


def build(
    deployment: Deployment, *, max_model_len: int, max_num_seqs: int, sglang_num_seqs: int | None = None
) -> Flags:
    """`sglang_num_seqs` is what fits SGLang's cache, where that is another precision than the plan's."""
    vllm = _vllm(deployment, max_model_len, max_num_seqs)
    sglang = _sglang(deployment, max_model_len, sglang_num_seqs or max_num_seqs)
    return Flags(
        vllm=vllm,
        sglang=sglang,
        values=_values(deployment, "vllm", vllm),
        sglang_values=_values(deployment, "sglang", sglang),
    )


def sglang_kv(deployment: Deployment) -> KvPrecision:
    """What SGLang keeps: 16 bits where it has no such precision."""
    kv = deployment.kv
    return kv if kv.bits == 16 or kv.name in _SGLANG_KV else KV["fp16"]


def model_argument(deployment: Deployment) -> str:
    """What an engine is told to load: the repository that the shape was read from. Of files on this machine
    nothing says where an engine finds them."""
    source = deployment.shape.source
    name = source.removeprefix("https://huggingface.co/")
    return MODEL_TO_SET if name == source else name


def to_set(deployment: Deployment) -> list[str]:
    """What the chart values leave to whoever deploys them."""
    notes = []
    if model_argument(deployment) == MODEL_TO_SET:
        notes.append(
            "chart values: the model was read from a config or file, so `model:` is a placeholder; set it to"
            " the repository, or the path in the container, that the engine loads"
        )
    if deployment.gpu.vendor == "amd":
        notes.append(
            "chart values: the chart's own images are CUDA's; `image:` names ROCm's in their place. Set"
            " `image.tag` to a release that has one: vLLM's tags are its versions, SGLang's name ROCm and the"
            " GPU"
        )
    return notes


def _vllm(deployment: Deployment, max_model_len: int, max_num_seqs: int) -> list[str]:
    flags = [
        f"--max-model-len {max_model_len}",
        f"--max-num-seqs {max_num_seqs}",
        f"--max-num-batched-tokens {deployment.batched_tokens}",
        f"--gpu-memory-utilization {deployment.utilization:g}",
        f"--block-size {deployment.block_size}",
    ]
    if (most := threshold(deployment, max_model_len)) is not None:
        flags.append(f"--long-prefill-token-threshold {most}")
    if not deployment.gpu.has_bf16:
        flags.append("--dtype float16")
    if deployment.tensor_parallel > 1:
        flags.append(f"--tensor-parallel-size {deployment.tensor_parallel}")
    if deployment.kv.name in _VLLM_KV:
        flags.append(f"--kv-cache-dtype {_VLLM_KV[deployment.kv.name]}")
    elif deployment.shape.kv != "fp16":
        # without it the engine keeps what the checkpoint was calibrated for
        flags.append("--kv-cache-dtype bfloat16")
    if _converted_to_fp8(deployment):
        flags.append("--quantization fp8")
    # what the gateway lives on: shared prefixes, what was served from cache, and the events
    flags += [
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        f"--kv-events-config '{json.dumps(_EVENTS | _ENDPOINTS)}'",
    ]
    return flags


def _sglang(deployment: Deployment, max_model_len: int, max_num_seqs: int) -> list[str]:
    budget, pool = deployment.budget(), deployment.pool(sglang_kv(deployment))
    # SGLang's share is of weights and K/V together, without activations and graphs; rounded down, to be safe
    static = math.floor(100 * (budget.weights + pool.blocks * pool.block_bytes) / budget.total) / 100
    flags = [
        f"--context-length {max_model_len}",
        f"--max-running-requests {max_num_seqs}",
        f"--chunked-prefill-size {deployment.batched_tokens}",
        f"--mem-fraction-static {static:g}",
        f"--page-size {deployment.block_size}",
    ]
    if not deployment.gpu.has_bf16:
        flags.append("--dtype float16")
    if deployment.tensor_parallel > 1:
        flags.append(f"--tp-size {deployment.tensor_parallel}")
    if deployment.kv.name in _SGLANG_KV:
        flags.append(f"--kv-cache-dtype {_SGLANG_KV[deployment.kv.name]}")
    elif deployment.shape.kv != "fp16":
        flags.append("--kv-cache-dtype bf16")
    if _converted_to_fp8(deployment):
        flags.append("--quantization fp8")
    events = {"publisher": "zmq", "topic": "kv-events", **_ENDPOINTS}
    flags += ["--enable-metrics", "--enable-cache-report", f"--kv-events-config '{json.dumps(events)}'"]
    return flags


def _converted_to_fp8(deployment: Deployment) -> bool:
    """Engines quantise a 16-bit checkpoint to fp8 while loading; to int4 they cannot."""
    return deployment.weights.name == "fp8" and deployment.shape.checkpoint != "fp8"


def _values(deployment: Deployment, engine_type: str, flags: list[str]) -> str:
    vendor = "amd.com/gpu" if deployment.gpu.vendor == "amd" else "nvidia.com/gpu"
    label = "amd.com/gpu.product-name" if deployment.gpu.vendor == "amd" else "nvidia.com/gpu.product"
    args: list[str] = []
    for flag in flags:
        name, _, value = flag.partition(" ")
        args.append(f"{name}={value.strip(chr(39))}" if value else name)
    engine: dict[str, object] = {
        "type": engine_type,
        "model": model_argument(deployment),
        "replicas": deployment.replicas,
        "args": args,
        "resources": {"limits": {vendor: deployment.tensor_parallel}},
    }
    if deployment.gpu.vendor == "amd":
        engine["image"] = _ROCM[engine_type]
    if deployment.gpu.product:
        engine["nodeSelector"] = {label: deployment.gpu.product}
    return yaml.safe_dump({"engine": engine}, sort_keys=False, width=200)


def unsupported(deployment: Deployment) -> list[str]:
    """What an engine cannot do of this plan."""
    warnings = []
    if sglang_kv(deployment) is not deployment.kv:
        warnings.append(
            f"SGLang has no {deployment.kv.name} K/V: its flags leave the cache in 16 bits, with as many"
            " sequences as those hold"
        )
    if deployment.shape.latent and deployment.block_size % MLA_BLOCK:
        warnings.append(
            f"blocks of {deployment.block_size}: vLLM's faster MLA kernels take {MLA_BLOCK}"
            f" (--block-size {MLA_BLOCK})"
        )
    quantised = deployment.weights.bits < 16 and deployment.weights.name != deployment.shape.checkpoint
    if quantised and deployment.weights.name != "fp8":
        warnings.append(
            f"{deployment.weights.name} weights need a checkpoint quantised so: serve one in place of this"
        )
    if deployment.weights.fp8_math and deployment.gpu.fp8 is None:
        warnings.append(f"{deployment.gpu.title} has no fp8 units: fp8 weights save memory, not arithmetic")
    if deployment.gpu.note:
        warnings.append(f"{deployment.gpu.title}: {deployment.gpu.note}")
    return warnings
