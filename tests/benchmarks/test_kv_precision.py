"""Figures of the K/V precision benchmark by hand, and their order on a model that computes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kv_precision import compare, measure
from workers.model.hf import load_hf
from workers.model.tiny import ensure_tiny


def test_differences_by_hand() -> None:
    exact = np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    near = np.array([[0.0, math.log(3)], [1.0, 0.0]], dtype=np.float32)
    largest, rms, divergence, agreement = compare(exact, near)
    assert largest == pytest.approx(math.log(3))
    assert rms == pytest.approx(math.log(3) / 2)
    # halves against a quarter and three quarters, then nothing; the mean of both
    assert divergence == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2, rel=1e-5)
    assert agreement == 0.5


def test_fewer_bits_are_worse_and_float32_is_exact(tmp_path: Path) -> None:
    rows, spread = measure(load_hf(ensure_tiny(tmp_path)), list(range(40, 80)), 8)
    exact, half, eight, fp8 = rows
    assert [row.kind for row in rows] == ["float32", "float16", "int8", "fp8"]
    assert (exact.largest, exact.divergence, exact.agreement) == (0.0, 0.0, 1.0)
    assert 0 < half.rms < eight.rms < fp8.rms < spread
    # 2 (K, V) × 2 layers × 2 heads × 16 elements; int8 and fp8 add a float32 scale a head
    assert [row.bytes_per_token for row in rows] == [512, 256, 160, 160]
