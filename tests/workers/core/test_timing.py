"""Step times by hand, and what one knows of real GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.profiles import builtin_profiles, profile_named
from workers.timing import Gpu, LinearTiming, Model, RooflineTiming

# a model of round figures: 2 · 1e9 FLOPs and 2e9 weight bytes a step, 4 · 2 · 4 · 8 = 256 FLOPs a pair,
# 2 · 2 · 1 · 8 · 2 = 64 K/V bytes a token
MODEL = Model(parameters=1e9, layers=2, heads=4, kv_heads=1, head_size=8)
TOY = RooflineTiming(
    MODEL,
    Gpu(flops=1e13, bandwidth=1e12, memory=16e9),
    compute_efficiency=0.5,
    memory_efficiency=0.5,
    overhead_s=0.001,
)


def test_prefill_is_bound_by_arithmetic() -> None:
    # tokens 1,000: 2e12 FLOPs; pairs 1,000 · 1,001 / 2 = 500,500: 1.28128e8; over 5e12
    assert TOY.step_seconds([(1_000, 0)]) == pytest.approx((2e12 + 500_500 * 256) / 5e12 + 0.001)


def test_decode_is_bound_by_bandwidth() -> None:
    # weights 2e9 and 2 · 10,000 tokens of K/V at 64 bytes, over 5e11
    assert TOY.step_seconds([(1, 9_999), (1, 9_999)]) == pytest.approx((2e9 + 20_000 * 64) / 5e11 + 0.001)


def test_a_chunk_pays_for_the_attention_to_what_is_before_it() -> None:
    # 10 tokens after 100: pairs 10 · 100 + 55
    bare = replace(TOY, model=replace(MODEL, parameters=0.0), overhead_s=0.0)
    assert bare.step_seconds([(10, 100)]) == pytest.approx(max(1_055 * 256 / 5e12, 110 * 64 / 5e11))


def test_chunks_sum_up_to_the_whole_but_for_what_each_step_costs() -> None:
    whole = TOY.step_seconds([(1_000, 0)])
    parts = TOY.step_seconds([(600, 0)]) + TOY.step_seconds([(400, 600)])
    assert parts - whole == pytest.approx(0.001)


def test_decode_seconds_are_those_of_a_step_of_decodes() -> None:
    shapes = [(1, 99), (1, 499), (1, 4_999)]
    assert TOY.decode_seconds(3, 100 + 500 + 5_000) == TOY.step_seconds(shapes)
    linear = LinearTiming(prefill_token_s=0.5, step_s=0.25)
    assert linear.decode_seconds(3, 5_600) == linear.step_seconds(shapes) == 0.25


def test_an_empty_step_takes_no_time() -> None:
    assert TOY.step_seconds([]) == 0
    assert TOY.decode_seconds(0, 0) == 0
    assert LinearTiming(1.0, 1.0).decode_seconds(0, 0) == 0
    assert LinearTiming(1.0, 1.0).step_seconds([]) == 0


def test_four_gpus_are_four_times_as_fast() -> None:
    quick = replace(TOY, overhead_s=0.0)
    assert replace(quick, gpus=4).step_seconds([(1_000, 0)]) == pytest.approx(
        quick.step_seconds([(1_000, 0)]) / 4
    )


def test_blocks_that_fit() -> None:
    # 16e9 · 0.9 - 2e9 - 4e8 = 12e9 bytes, of 16 · 64 = 1,024 a block
    assert TOY.num_blocks(16, utilization=0.9, reserve=4e8) == 12_000_000_000 // 1_024
    assert replace(TOY, gpu=Gpu(1, 1, 1e9)).num_blocks(16) == 0


@pytest.mark.parametrize(
    ("name", "tokens", "decode_low", "decode_high", "prefill_low", "prefill_high"),
    [
        # K/V tokens that fit; seconds of a decode step of one short sequence; prefill tokens a second
        ("h100-8b", (430_000, 500_000), 0.006, 0.012, 20_000, 40_000),
        ("a100-8b", (430_000, 500_000), 0.010, 0.018, 7_000, 12_000),
        ("l4-8b", (20_000, 45_000), 0.060, 0.080, 2_500, 5_000),
        ("h100-70b-tp4", (450_000, 560_000), 0.015, 0.025, 9_000, 18_000),
    ],
)
def test_profiles_are_near_what_such_gpus_do(
    name: str,
    tokens: tuple[int, int],
    decode_low: float,
    decode_high: float,
    prefill_low: float,
    prefill_high: float,
) -> None:
    profile = profile_named(name)
    assert tokens[0] < profile.num_blocks * profile.block_size < tokens[1]
    assert decode_low < profile.timing.step_seconds([(1, 500)]) < decode_high
    assert prefill_low < 4_096 / profile.timing.step_seconds([(4_096, 0)]) < prefill_high


def test_every_profile_gives_a_config_that_works() -> None:
    for name, profile in builtin_profiles().items():
        config = profile.engine_config("served")
        assert config.model == "served"
        assert config.max_model_len <= config.num_blocks * config.block_size, name
        assert config.max_num_seqs <= config.max_num_batched_tokens, name


def test_figures_of_ones_own() -> None:
    assert profile_named("20us-per-token").timing == LinearTiming(prefill_token_s=20e-6)
    both = profile_named("0.5ms-per-token,5ms-per-step")
    assert both.timing == LinearTiming(prefill_token_s=0.0005, step_s=0.005)
    # 100 tokens of prompt, one of decode
    assert both.timing.step_seconds([(100, 0), (1, 50)]) == pytest.approx(0.055)
    assert profile_named("fast").timing.step_seconds([(9_999, 0)]) == 0


def test_options_change_figures() -> None:
    profile = profile_named("h100-8b,num_blocks=3000,compute_efficiency=0.25,max_num_seqs=32")
    usual = profile_named("h100-8b")
    assert (profile.num_blocks, profile.max_num_seqs) == (3_000, 32)
    assert profile.engine_config("m").max_model_len == 48_000
    assert profile.timing.step_seconds([(8_000, 0)]) > 1.9 * usual.timing.step_seconds([(8_000, 0)])
    assert profile_named("20us-per-token,num_blocks=100").num_blocks == 100
    passing = profile_named("h100-8b,long_prefill_token_threshold=1024").engine_config("m")
    assert (passing.long_prefill_token_threshold, passing.max_num_batched_tokens) == (1_024, 8_192)
    assert usual.engine_config("m").long_prefill_token_threshold == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b200-8b", "no simulated engine.*h100-8b.*20us-per-token"),
        ("h100-8b,num_block=3", "no option.*num_blocks.*overhead_s"),
        ("20us-per-token,overhead_s=1", "no option"),
        ("h100-8b,num_blocks=many", "num_blocks=many"),
    ],
)
def test_unknown_names_are_refused_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        profile_named(text)
