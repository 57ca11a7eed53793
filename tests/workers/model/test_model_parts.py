"""Rope, attention and the K/V store against figures worked out by hand or the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workers.model.attention import attend
from workers.model.kv_store import KvDtype, PagedKv, PagedTensor
from workers.model.rope import F32, RopeConfig, inverse_frequencies, rotate, rotations


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def test_rope_frequencies_are_powers_of_theta() -> None:
    np.testing.assert_allclose(
        inverse_frequencies(RopeConfig(theta=10000.0), 8), [1.0, 0.1, 0.01, 0.001], rtol=1e-6
    )


def test_linear_scaling_slows_every_frequency() -> None:
    np.testing.assert_allclose(
        inverse_frequencies(RopeConfig(kind="linear", factor=4.0), 8),
        [0.25, 0.025, 0.0025, 0.00025],
        rtol=1e-6,
    )


def test_llama3_scaling_keeps_short_waves_stretches_long_ones_and_blends_between() -> None:
    rope = RopeConfig(
        theta=10000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position=128,
    )  # fmt: skip
    # periods in 128 tokens: 128·f/2π = 20.37 (kept), 2.037 (blended), 0.2037 and 0.02037 (stretched)
    blend = (128 * 0.1 / (2 * math.pi) - 1) / 3
    expected = [1.0, 0.1 * (blend + (1 - blend) / 8), 0.01 / 8, 0.001 / 8]
    np.testing.assert_allclose(inverse_frequencies(rope, 8), expected, rtol=1e-6)


def test_divisors_of_the_checkpoint_replace_scaling() -> None:
    rope = RopeConfig(divisors=(1.0, 2.0, 4.0, 8.0))
    np.testing.assert_allclose(inverse_frequencies(rope, 8), [1.0, 0.05, 0.0025, 0.000125], rtol=1e-6)


def test_rotation_turns_each_pair_of_halves_by_position_times_frequency() -> None:
    heads = np.array([[[1.0, 2.0, 3.0, 4.0]]], dtype=np.float32)  # pairs (1, 3) and (2, 4)
    frequencies = np.array([0.5, 0.25], dtype=np.float32)
    rotate(heads, *rotations(frequencies, np.array([2])))
    c, s = math.cos(1.0), math.sin(1.0)
    d, t = math.cos(0.5), math.sin(0.5)
    expected = [1 * c - 3 * s, 2 * d - 4 * t, 3 * c + 1 * s, 4 * d + 2 * t]
    np.testing.assert_allclose(heads[0, 0], expected, rtol=1e-6)


def slow_attention(q: F32, k: F32, v: F32, start: int) -> F32:
    n, heads, head_dim = q.shape
    group = heads // len(k)
    out = np.zeros((n, heads, head_dim))
    for i in range(n):
        for h in range(heads):
            keys, values = k[h // group, : start + i + 1], v[h // group, : start + i + 1]
            scores = [float(q[i, h] @ key) / math.sqrt(head_dim) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            out[i, h] = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
    return out.reshape(n, heads * head_dim)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])  # multi-query, grouped, one to one
@pytest.mark.parametrize(("n", "start"), [(1, 0), (1, 9), (7, 0), (5, 11)])
def test_attention_is_softmax_over_what_came_before(kv_heads: int, n: int, start: int) -> None:
    q = random(n, 6, 4)
    k, v = random(kv_heads, start + n, 4, seed=1), random(kv_heads, start + n, 4, seed=2)
    np.testing.assert_allclose(attend(q, k, v, start), slow_attention(q, k, v, start), atol=1e-5)


def test_long_prompts_are_attended_in_tiles_with_the_same_result() -> None:
    q, k, v = random(300, 2, 4), random(1, 310, 4, seed=1), random(1, 310, 4, seed=2)
    np.testing.assert_allclose(attend(q, k, v, 10), slow_attention(q, k, v, 10), atol=1e-5)


def test_scores_that_overflow_exp_are_no_trouble() -> None:
    q = np.full((2, 1, 4), 100.0, dtype=np.float32)
    k = np.stack([np.full((2, 4), 100.0, dtype=np.float32)])
    v = np.array([[[1.0] * 4, [3.0] * 4]], dtype=np.float32)
    np.testing.assert_allclose(attend(q, k, v, 0), [[1.0] * 4, [2.0] * 4])


def test_slots_follow_the_block_table() -> None:
    kv = PagedKv(layers=1, heads=1, head_dim=2, blocks=9, block_size=4, dtype="float32")
    # position 3 → block 7 offset 3; 4…7 → block 2; 8 → block 5 offset 0
    assert kv.slots([7, 2, 5], 3, 6).tolist() == [31, 8, 9, 10, 11, 20]


def test_float32_comes_back_as_it_went() -> None:
    store = PagedTensor(2, 3, 4, 8, "float32")
    values = random(6, 2, 8)
    store.write(np.array([8, 9, 10, 11, 0, 1]), values)
    np.testing.assert_array_equal(store.read(np.array([2, 0]), 6), values.transpose(1, 0, 2))


# half a step of each code, relative to the largest element of the head: 1/2^11, 1/(2·127), 16/448
@pytest.mark.parametrize(("dtype", "step"), [("float16", 2**-11), ("int8", 1 / 254), ("fp8", 16 / 448)])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_small_types_come_back_within_half_a_step(dtype: KvDtype, step: float, magnitude: float) -> None:
    store = PagedTensor(2, 3, 4, 64, dtype)
    values = random(10, 2, 64) * np.float32(magnitude)
    store.write(np.arange(10), values)
    back = store.read(np.arange(3), 10).transpose(1, 0, 2)
    assert back.dtype == np.float32
    bound = np.abs(values).max(axis=-1, keepdims=True) * step * 1.001
    assert (np.abs(back - values) <= bound).all()


@pytest.mark.parametrize("dtype", ["float16", "int8", "fp8"])
def test_small_types_survive_zeros_and_giants(dtype: KvDtype) -> None:
    store = PagedTensor(1, 1, 4, 4, dtype)
    store.write(np.array([0, 1]), np.array([[[0.0] * 4], [[1e6, -1e6, 0.0, 5e5]]], dtype=np.float32))
    back = store.read(np.array([0]), 2)[0]
    giants = [65504.0, -65504.0, 0.0, 65504.0] if dtype == "float16" else [1e6, -1e6, 0.0, 5e5]
    np.testing.assert_allclose(back, [[0.0] * 4, giants], rtol=0.01)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_head"), [("float32", 256), ("float16", 128), ("int8", 68), ("fp8", 68)]
)
def test_bytes_of_k_and_v(dtype: KvDtype, bytes_per_head: int) -> None:
    # a head of 64 elements; int8 and fp8 add one float32 scale
    kv = PagedKv(layers=3, heads=2, head_dim=64, blocks=5, block_size=16, dtype=dtype)
    assert kv.nbytes == 2 * 3 * 2 * 5 * 16 * bytes_per_head
