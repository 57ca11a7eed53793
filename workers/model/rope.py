"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), in the half-split layout of Hugging Face.

A head's vector is read as two halves (a, b); pair j, that is (a[j], b[j]), turns by position × inv_freq[j].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    divisors: tuple[float, ...] = ()
    """Where a checkpoint carries them (GGUF's `rope_freqs`): one divisor per inverse frequency."""


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> F32:
    """Radians per position for each of the head_dim/2 pairs.

    In float32 throughout, for this is what checkpoints were trained and are judged with.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: F32 = (1.0 / np.power(np.float32(rope.theta), exponents)).astype(np.float32)
    if rope.divisors:
        frequencies /= np.asarray(rope.divisors, dtype=np.float32)
        return frequencies
    if rope.kind == "linear":
        return frequencies / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: F32, rope: RopeConfig) -> F32:
    """Llama 3.1's stretch: short waves stay, long waves slow down by `factor`, those between are blended by
    how many of their periods fit the original context (`low_freq_factor` … `high_freq_factor`)."""
    periods = rope.original_max_position * frequencies / (2 * math.pi)
    blend = (periods - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    stretched: F32 = (frequencies * (blend + (1.0 - blend) / rope.factor)).astype(np.float32)
    return stretched


def rotations(inv_freq: F32, positions: npt.NDArray[np.int64]) -> tuple[F32, F32]:
    """cos and sin for these positions, each [tokens, 1, head_dim/2] so that they broadcast over heads."""
    angles = positions.astype(np.float32)[:, None] * inv_freq
    return np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]


def rotate(heads: F32, cos: F32, sin: F32) -> None:
    """Turns `heads` [tokens, heads, head_dim] in place."""
    half = heads.shape[-1] // 2
    a, b = heads[..., :half], heads[..., half:]
    turned = a * cos
    turned -= b * sin
    b *= cos
    b += a * sin
    heads[..., :half] = turned
