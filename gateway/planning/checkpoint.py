"""What precision a checkpoint's files are in: its weights, and the K/V that it was calibrated for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def weights(fields: Mapping[str, Any]) -> str:
    """Name in precision.WEIGHTS of what the published files hold."""
    quantization = fields.get("quantization_config")
    if isinstance(quantization, Mapping):
        method = str(quantization.get("quant_method", "")).lower()
        algorithm = f"{method} {quantization.get('quant_algo', '')} {quantization.get('format', '')}".lower()
        for mark in ("mxfp4", "nvfp4", "fp8"):
            if mark in algorithm or (mark == "fp8" and "float-quantized" in algorithm):
                return mark
        if quantization.get("load_in_4bit") or quantization.get("bits") == 4 or "awq" in algorithm:
            return "int4"
        if quantization.get("load_in_8bit") or quantization.get("bits") == 8 or "int-quantized" in algorithm:
            return "int8"
        if "pack-quantized" in algorithm:
            return "int4"
    dtype = str(fields.get("dtype") or fields.get("torch_dtype") or "bf16").removeprefix("torch.")
    return {"float16": "fp16"}.get(dtype, "bf16")


def kv(fields: Mapping[str, Any]) -> str:
    """Name in precision.KV of what engines keep unless they are told: fp8 where the checkpoint has scales for
    it (compressed-tensors' `kv_cache_scheme`, ModelOpt's `kv_cache_quant_algo`), 16 bits otherwise."""
    quantization = fields.get("quantization_config")
    if isinstance(quantization, Mapping):
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
            return "fp8"
        if str(quantization.get("kv_cache_quant_algo", "")).lower() == "fp8":
            return "fp8"
    return "fp16"
