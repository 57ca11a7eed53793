"""Whole plans: figures worked out by hand, advice with reasons, refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest
from gateway.fleet.load import WorkerLoad
from gateway.planning import Catalog, DoesNotFit, Plan, PlanRequest, plan
from gateway.planning.budget import activation_bytes, batched_tokens
from gateway.planning.long_prompts import SLICED, SLICED_SHARE
from gateway.planning.precision import KV, WEIGHTS, weight_sizes
from gateway.planning.roofline import Speed, decode_seconds, prefill_flops, prefill_seconds
from gateway.routing.slicing import MOST_OF_CACHE, Slicing
from gateway.routing.slicing import plan as plan_slices
from gateway.settings import Settings
from gateway.types import WorkerId

GIB = 2**30
CATALOG = Catalog.builtin()


def planned(model: str = "qwen2-7b", gpu: str = "l4", **fields: Any) -> Plan:
    return plan(PlanRequest(model=model, gpu=gpu, **fields), CATALOG)


def advice(found: Plan, what: str) -> tuple[str, str]:
    return next((item.value, item.reason) for item in found.advice if item.what == what)


def test_qwen2_7b_on_an_l4_by_hand() -> None:
    """22.03 GiB × 0.9, less 15,231,233,024 B of weights and exactly 2 GiB, in blocks of 917,504 B."""
    found = planned(reserve_gib=2.0)
    usable = int(int(22.03 * GIB) * 0.9)
    left = usable - 15_231_233_024 - 2 * GIB
    assert found.memory.kv == left
    assert found.kv_bytes_per_token == 57_344
    assert found.kv_bytes_per_block == 917_504
    assert found.kv_blocks == left // 917_504 == 4_261
    assert found.kv_tokens == 16 * 4_261
    assert [(row.tokens, row.kv_bytes) for row in found.lengths] == [
        (tokens, 57_344 * tokens) for tokens in (1024, 4096, 8192, 32768, 131072)
    ]
    assert found.lengths[0].blocks == 64
    assert found.lengths[0].sequences == 4_261 / 64


def test_the_utilisation_counts_from_what_the_driver_reports() -> None:
    tight, loose = planned(gpu_memory_utilization=0.85), planned(gpu_memory_utilization=0.95)
    assert loose.memory.usable - tight.memory.usable == pytest.approx(0.1 * 22.03 * GIB, abs=2)
    assert loose.kv_blocks > tight.kv_blocks


def test_explicit_figures_stand_in_for_a_gpu() -> None:
    found = plan(
        PlanRequest(model="qwen2-7b", gpu_memory_gib=100, gpu_bandwidth=1000, gpu_tflops=100, reserve_gib=0),
        CATALOG,
    )
    assert found.memory.total == 100 * GIB
    assert (found.gpu.bandwidth, found.gpu.flops) == (1e12, 1e14)
    assert planned(gpu_memory_gib=40).memory.total == 40 * GIB


def test_two_gpus_halve_weights_and_kv_heads() -> None:
    one, two = planned(reserve_gib=2.0), planned(reserve_gib=2.0, tensor_parallel=2)
    assert two.memory.weights == 15_231_233_024 // 2
    assert two.kv_bytes_per_token == one.kv_bytes_per_token == 57_344
    assert two.kv_bytes_per_token_per_gpu == 28_672
    assert two.kv_blocks == two.memory.kv // (16 * 28_672)


def test_more_gpus_than_kv_heads_hold_copies() -> None:
    found = planned(tensor_parallel=28)
    assert found.kv_bytes_per_token_per_gpu == 14_336
    assert "4 K/V heads over 28 GPUs: each head is held 7 times" in found.notes[0]


def test_a_fleet_without_a_group_size_gets_the_smallest_that_fits() -> None:
    found = planned("llama-3.1-70b", "h100", gpus=8)
    assert (found.gpu.tensor_parallel, found.gpu.replicas) == (2, 4)


def test_advice_for_a_comfortable_chat() -> None:
    found = planned("llama-3.1-8b", "h100", reserve_gib=3.0)
    # 6,000 + 1,024 tokens, rounded up to 256
    assert found.max_model_len == 7_168
    blocks = found.memory.kv // (16 * 131_072)
    # 1,800 tokens are 113 blocks, 31 of which hold the shared 496 tokens; one block is the engine's
    by_memory = (blocks - 1 - 31) // (113 - 31)
    assert found.max_num_seqs == by_memory
    assert advice(found, "kv-precision")[0] == "fp16"
    assert found.warnings == []


def test_a_target_between_tokens_bounds_the_batch() -> None:
    shape = CATALOG.model("llama-3.1-8b").shape()
    found = planned("llama-3.1-8b", "h100", itl_target=0.01)
    speed = Speed.of(CATALOG.gpu("h100"), WEIGHTS["bf16"], 1)

    def step(batch: int) -> float:
        return (
            decode_seconds(
                shape,
                speed,
                KV["fp16"],
                batch=batch,
                context=1800,
                weights=weight_sizes(shape, WEIGHTS["bf16"]),
                tensor_parallel=1,
            )
            / 0.75
        )

    assert step(found.max_num_seqs) <= 0.01 < step(found.max_num_seqs + 1)
    assert "would decode slower than 10 ms" in advice(found, "max-num-seqs")[1]


def test_a_target_that_bandwidth_forbids_is_said() -> None:
    found = planned(itl_target=0.02)
    assert any("bound by memory bandwidth" in warning for warning in found.warnings)
    assert found.max_num_seqs > 1


def test_fp8_is_advised_where_memory_is_what_limits() -> None:
    found = planned(scenario="document-qa", concurrency=64)
    value, reason = advice(found, "kv-precision")
    assert value == "fp8"
    assert "28,672 B a token less" in reason
    assert any("are wanted at once" in warning for warning in found.warnings)
    assert any("long context eats concurrency" in warning for warning in found.warnings)
    eight = planned(scenario="document-qa", concurrency=64, kv="fp8")
    assert eight.kv_bytes_per_token == 28_672
    assert "--kv-cache-dtype fp8" in eight.flags.vllm
    assert "--kv-cache-dtype fp8_e4m3" in eight.flags.sglang


def test_fp8_that_nobody_needs_is_said_to_be_so() -> None:
    assert advice(planned(kv="fp8", concurrency=2), "kv-precision")[0] == "fp16"


def test_a_model_that_knows_less_than_the_workload_is_said() -> None:
    found = planned("llama-3-8b", "a100-80", scenario="document-qa")
    assert found.max_model_len == 8192
    assert any("knows 8,192 positions" in warning for warning in found.warnings)


def test_memory_that_holds_less_than_the_workload_shortens_the_model() -> None:
    found = planned(gpu_memory_gib=18, reserve_gib=1.5, scenario="document-qa")
    assert found.max_model_len % 16 == 0
    assert found.max_model_len < 16_024
    assert found.max_model_len == 16 * (found.kv_blocks - 1)
    assert any("will be refused" in warning for warning in found.warnings)


def test_lengths_that_are_given_are_kept_or_refused() -> None:
    assert planned(max_model_len=4096).max_model_len == 4096
    with pytest.raises(InvalidRequest, match="knows 32,768 positions, not 65,536"):
        planned(max_model_len=65_536)
    with pytest.raises(DoesNotFit, match="one sequence of 32,768 tokens does not fit"):
        planned("qwen2.5-7b", gpu_memory_gib=18, reserve_gib=1.0, max_model_len=32_768)


def test_weights_that_do_not_fit_say_how_many_gpus_would() -> None:
    with pytest.raises(DoesNotFit, match=r"It needs 2 of them .*or 1 with int4 weights") as refusal:
        planned("llama-3.1-70b", "h100")
    assert refusal.value.gpus_needed == 2
    with pytest.raises(DoesNotFit) as refusal:
        planned("llama-3.1-405b", "h100")
    assert refusal.value.gpus_needed == 16


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor_parallel": 3}, "cannot be shared out over 3 GPUs"),
        ({"tensor_parallel": 2, "gpus": 3}, "3 GPUs cannot be shared out in groups of 2"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization"),
        ({"gpu_memory_gib": -1.0}, "gpu_memory_gib must be above 0"),
        ({"gpu_memory_gib": float("nan")}, "gpu_memory_gib must be above 0"),
        ({"block_size": 10}, "block_size"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"input_mean": 100, "input_longest": 50}, "input_longest .50. is below input_mean .100."),
        ({"prefix": 2000}, "common prefix of 2000 tokens in prompts of 1500"),
        ({"weights": "fp3"}, "weight precision 'fp3'"),
        ({"kv": "fp3"}, "K/V precision 'fp3'"),
        ({"max_model_len": 0}, "max_model_len must be above 0"),
        ({"ttft_target": -1.0}, "ttft_target"),
        ({"ttft_target": 0.0}, "ttft_target must be above 0"),
        ({"itl_target": 0.0}, "itl_target must be above 0"),
        ({"input_mean": 0}, "input_mean must be at least 1"),
        ({"output_mean": 0}, "output_mean must be at least 1"),
        ({"input_longest": 0}, "input_longest .0. is below"),
    ],
)
def test_nonsense_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        planned(**fields)


def test_a_gpu_or_its_figures_and_a_model_or_its_config() -> None:
    with pytest.raises(InvalidRequest, match="name a GPU"):
        plan(PlanRequest(model="qwen2-7b", gpu_memory_gib=24), CATALOG)
    with pytest.raises(InvalidRequest, match="name a model or give its config"):
        plan(PlanRequest(gpu="l4"), CATALOG)
    config = CATALOG.model("qwen2-7b").config
    assert plan(PlanRequest(config=config, gpu="l4"), CATALOG).kv_bytes_per_token == 57_344


def test_prefill_arithmetic_by_hand() -> None:
    """Qwen2-7B, 100 tokens: 2 FLOPs a matrix weight and token, one row of output, and a causal triangle of
    2 × 28 heads × (128 + 128) a pair in 28 layers."""
    shape = CATALOG.model("qwen2-7b").shape()
    dense = 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944)
    pairs = 100 * 101 // 2
    assert prefill_flops(shape, 100) == 2 * 100 * dense + 2 * 152064 * 3584 + 28 * 2 * 28 * 256 * pairs
    # the last 36 positions see all before them: 100·101/2 - 64·65/2 pairs
    assert prefill_flops(shape, 100, cached=64) == (
        2 * 36 * dense + 2 * 152064 * 3584 + 28 * 2 * 28 * 256 * (5050 - 2080)
    )


def test_a_window_bounds_the_pairs() -> None:
    """Mistral v0.1: 8,192 tokens, window 4,096: a triangle, then 4,096 keys each."""
    shape = CATALOG.model("mistral-7b-v0.1").shape()
    linear = 2 * 8192 * shape.parameters.dense + 2 * 32000 * 4096
    pairs = 4096 * 4097 // 2 + 4096 * 4096
    assert prefill_flops(shape, 8192) == linear + 32 * 2 * 32 * 256 * pairs


def test_a_step_reads_the_weights_once_and_every_sequence() -> None:
    shape = CATALOG.model("qwen2-7b").shape()
    speed = Speed(flops=1e30, bandwidth=1e9)
    weights = weight_sizes(shape, WEIGHTS["bf16"])
    read = 2 * 7_615_616_512 - 2 * 152064 * 3584 + 3 * 1000 * 57_344
    seconds = decode_seconds(
        shape, speed, KV["fp16"], batch=3, context=1000, weights=weights, tensor_parallel=1
    )
    assert seconds == pytest.approx(read / 1e9, rel=1e-12)
    assert prefill_seconds(shape, speed, tokens=1, cached=0, weights=weights) == 2 * 7_615_616_512 / 1e9


def test_a_small_batch_reads_only_the_experts_it_chose() -> None:
    """Mixtral chooses 2 of 8: one token reads a quarter of the expert weights, two tokens 1 - (3/4)²."""
    shape = CATALOG.model("mixtral-8x7b").shape()
    speed = Speed(flops=1e30, bandwidth=2.0)  # 2 B a weight: seconds count weights

    def read(batch: int) -> float:
        return (
            decode_seconds(
                shape,
                speed,
                KV["fp16"],
                batch=batch,
                context=1,
                weights=weight_sizes(shape, WEIGHTS["bf16"]),
                tensor_parallel=1,
            )
            - batch * 131_072 / 2
        )

    rest = shape.parameters.total - shape.parameters.experts - shape.parameters.embedding
    assert read(1) == pytest.approx(rest + shape.parameters.experts / 4)
    assert read(2) == pytest.approx(rest + shape.parameters.experts * 7 / 16)


def test_a_warm_prefix_saves_memory_and_prefill() -> None:
    found = planned("llama-3.1-8b", "h100", concurrency=10, prefix=1000, input_mean=2000)
    assert (found.prefix.tokens, found.prefix.blocks) == (992, 62)
    assert found.prefix.memory_bytes == 9 * 62 * 16 * 131_072
    assert 0.4 < found.prefix.prefill_share < 0.5
    assert found.latency.ttft_warm < found.latency.ttft_cold
    assert found.latency.ttft_cold_bound < found.latency.ttft_cold


def test_engine_defaults_of_batched_tokens() -> None:
    """vLLM 0.32's arg_utils: by memory, and an A100 counts as small."""
    sizes = {name: batched_tokens(CATALOG.gpu(name)) for name in ("l4", "a100-80", "h100", "h200", "b200")}
    assert sizes == {"l4": 2048, "a100-80": 2048, "h100": 8192, "h200": 8192, "b200": 16384}


def test_activations_of_llama_8b_by_hand() -> None:
    shape = CATALOG.model("llama-3.1-8b").shape()
    assert activation_bytes(shape, 8192, 1) == 2 * 8192 * (4 * 4096 + 3 * 14336) + 2 * 4 * 256 * 128256


def test_flags_and_chart_values() -> None:
    found = planned("qwen2-7b", "l4", gpus=4, tensor_parallel=2, weights="fp8")
    assert f"--max-model-len {found.max_model_len}" in found.flags.vllm
    assert f"--max-num-seqs {found.max_num_seqs}" in found.flags.vllm
    assert "--tensor-parallel-size 2" in found.flags.vllm
    assert "--quantization fp8" in found.flags.vllm
    assert "--tp-size 2" in found.flags.sglang
    assert f"--context-length {found.max_model_len}" in found.flags.sglang
    values = msgspec.yaml.decode(found.flags.values)
    assert values["engine"]["replicas"] == 2
    assert values["engine"]["model"] == "Qwen/Qwen2-7B-Instruct"
    assert values["engine"]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    events = next(arg for arg in values["engine"]["args"] if arg.startswith("--kv-events-config="))
    assert msgspec.json.decode(events.partition("=")[2])["enable_kv_cache_events"] is True


@pytest.mark.parametrize(
    ("gpu", "fields", "value", "steps", "slices"),
    [
        # questions of 2,000 new tokens beside documents of 15,000: 7.3 steps of 2,048, one slice
        ("l4", {"scenario": "document-qa"}, "1024", "8 whole steps of 2,048", ""),
        # sessions that are mostly cached beside first prompts of 120,000: 14.6 steps of 8,192
        (
            "h100",
            {"input_mean": 50_000, "input_longest": 120_000, "prefix": 45_000, "concurrency": 16},
            "4096",
            "15 whole steps of 8,192",
            "the gateway's --slice-after 0.5 sends it in slices",
        ),
        # three tenths of what this one's cache holds would be 58,000
        (
            "l40s",
            {"input_mean": 46_500, "input_longest": 120_000, "prefix": 45_000, "concurrency": 16},
            "1024",
            "59 whole steps of 2,048",
            "",
        ),
        # 120,000 tokens would take some 12 s, and are in time
        (
            "h100",
            {
                "input_mean": 50_000,
                "input_longest": 120_000,
                "prefix": 45_000,
                "concurrency": 16,
                "ttft_target": 15.0,
            },
            "4096",
            "15 whole steps of 8,192",
            "",
        ),
    ],
)
def test_long_prompts_among_short_ones_are_bounded(
    gpu: str, fields: dict[str, Any], value: str, steps: str, slices: str
) -> None:
    found = planned("llama-3.1-8b", gpu, **fields)
    told, reason = advice(found, "long-prefill-token-threshold")
    assert told == value
    assert steps in reason
    assert slices in reason if slices else "slice" not in reason
    assert f"--long-prefill-token-threshold {value}" in found.flags.vllm
    args = msgspec.yaml.decode(found.flags.values)["engine"]["args"]
    assert f"--long-prefill-token-threshold={value}" in args
    # the flag is vLLM's
    assert not any("long-prefill" in flag for flag in found.flags.sglang)


def test_prompts_are_cut_from_where_the_gateway_would() -> None:
    slicing, load = Slicing(1.0, Settings().slice_tokens), WorkerLoad(WorkerId("a"), capacity_tokens=10**6)

    def cut(new: int) -> bool:
        found = plan_slices(
            slicing, prompt_tokens=new, matched_tokens=0, seconds=2.0, block=16, load=load, loads=[load]
        )
        return found is not None

    assert (cut(SLICED), cut(SLICED + 1)) == (False, True)
    assert SLICED_SHARE == MOST_OF_CACHE


@pytest.mark.parametrize(
    "fields",
    [
        # 6,000 tokens are three steps
        {"scenario": "chat"},
        # all are long: each would only be done later
        {"scenario": "long-document"},
        # nobody else is there
        {"scenario": "document-qa", "concurrency": 1},
        {"scenario": "document-qa", "gpus": 16, "tensor_parallel": 1},
        # the engine refuses what is longer than 8,000
        {"scenario": "document-qa", "max_model_len": 8_000},
        # the longest is half of a step
        {"scenario": "document-qa", "max_num_batched_tokens": 32_768},
    ],
)
def test_prompts_are_not_bounded_where_nobody_would_pass(fields: dict[str, Any]) -> None:
    found = planned("llama-3.1-8b", "l40s", **fields)
    assert "long-prefill-token-threshold" not in {item.what for item in found.advice}
    assert not any("long-prefill" in flag for flag in found.flags.vllm)


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_a_precision_that_no_engine_has_for_the_model_is_refused(kv: str) -> None:
    with pytest.raises(InvalidRequest, match=f"no {kv} for the latent K/V of deepseek-v3"):
        planned("deepseek-v3", "h200", gpus=8, kv=kv)
    assert [row.precision for row in planned("deepseek-v2-lite", "l40s").precisions] == ["fp16", "fp8"]


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_sglang_gets_the_sequences_of_the_cache_that_it_keeps(kv: str) -> None:
    """It has no int8 and no int4: its flags are those of 16 bits."""
    found, sixteen = planned(kv=kv), planned(kv="fp16")
    assert found.max_num_seqs > sixteen.max_num_seqs == 57
    assert f"--max-num-seqs {found.max_num_seqs}" in found.flags.vllm
    assert found.flags.sglang == sixteen.flags.sglang
    assert "--max-running-requests 57" in found.flags.sglang


def test_sglang_serves_the_metrics_that_the_gateway_reads() -> None:
    assert "--enable-metrics" in planned().flags.sglang


def test_mla_gets_the_blocks_that_its_kernels_take() -> None:
    dense, sparse = planned("deepseek-v3", "h200", gpus=8), planned("deepseek-v3.2", "h200", gpus=8)
    assert "--block-size 64" in dense.flags.vllm
    assert "--page-size 64" in sparse.flags.sglang
    assert sparse.kv_bytes_per_block == 64 * 61 * (1152 + 132)
    assert planned("llama-3.1-8b", "h100").block_size == 16


def test_blocks_that_mla_kernels_do_not_take() -> None:
    with pytest.raises(InvalidRequest, match="a block of 16 is no multiple of it"):
        planned("deepseek-v3.2", "h200", gpus=8, block_size=16)
    assert planned("deepseek-v3.2", "h200", gpus=8, block_size=128).block_size == 128
    # ROCm's index takes blocks of 16, dense MLA has slower kernels for them
    assert planned("deepseek-v3.2", "mi300x", gpus=8, block_size=16).block_size == 16
    slow = planned("deepseek-v3", "h200", gpus=8, block_size=16)
    assert any("--block-size 64" in warning for warning in slow.warnings)


def test_a_plain_cap_is_not_said_to_be_the_target() -> None:
    found = planned("llama-3.1-8b", "mi300x", kv="fp8", weights="fp8")
    assert advice(found, "max-num-seqs") == (
        "1,024",
        "memory holds 2,010 mean sequences; more than 1,024 buys nothing",
    )


def test_a_step_has_a_token_for_each_sequence() -> None:
    """vLLM refuses to start with more max-num-seqs than max-num-batched-tokens."""
    found = planned(max_num_batched_tokens=16)
    assert found.max_num_seqs == 16
    assert "a step has 16 tokens" in advice(found, "max-num-seqs")[1]
    for fields in ({"max_num_seqs": 2049}, {"max_num_seqs": 61, "max_num_batched_tokens": 60}):
        with pytest.raises(InvalidRequest, match="above max_num_batched_tokens"):
            planned(**fields)
    assert planned(max_num_seqs=2048).max_num_seqs == 2048


def test_a_gpu_without_bf16_is_told_to_use_fp16() -> None:
    found = planned("qwen2.5-1.5b", "t4")
    assert "--dtype float16" in found.flags.vllm
    assert "--dtype float16" in found.flags.sglang
    assert not any("--dtype" in flag for flag in planned().flags.vllm)


def test_what_a_checkpoint_is_calibrated_for_is_kept_unless_said_otherwise() -> None:
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "kv_cache_scheme": scheme,
    }
    config = CATALOG.model("llama-3.1-8b").config | {"quantization_config": quantization}
    own = plan(PlanRequest(config=config, gpu="h100"), CATALOG)
    assert (own.kv_precision, own.kv_bytes_per_token) == ("fp8", 65_536)
    wide = plan(PlanRequest(config=config, gpu="h100", kv="fp16"), CATALOG)
    assert wide.kv_bytes_per_token == 131_072
    assert "--kv-cache-dtype bfloat16" in wide.flags.vllm
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    again = plan(PlanRequest(config=config | {"quantization_config": modelopt}, gpu="h100"), CATALOG)
    assert again.kv_precision == "fp8"


def test_lengths_beyond_what_the_model_knows_are_marked() -> None:
    assert [row.known for row in planned().lengths] == [True, True, True, True, False]
    assert all(row.known for row in planned("llama-3.1-8b", "h100").lengths)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("Qwen/Qwen2-7B-Instruct-AWQ", "int4"),
        ("Qwen/Qwen2-7B-Instruct-GPTQ-Int4", "int4"),
        ("Qwen/Qwen2-7B-Instruct-GPTQ-Int8", "int8"),
        ("neuralmagic/Qwen2-7B-Instruct-FP8", "fp8"),
    ],
)
def test_a_quantised_repository_is_planned_with_its_weights(name: str, weights: str) -> None:
    found = planned(name)
    assert (found.model.weights, found.kv_bytes_per_token) == (weights, 57_344)
    assert f"model: {name}" in found.flags.values
    assert not any("quantised so" in warning for warning in found.warnings)
    assert planned(name, weights="bf16").model.weights == "bf16"


def test_a_repository_is_what_the_engine_is_told_to_load() -> None:
    assert (
        "model: deepseek-ai/DeepSeek-R1\n" in planned("deepseek-ai/DeepSeek-R1", "b200", gpus=8).flags.values
    )
    assert "model: deepseek-ai/DeepSeek-V3\n" in planned("deepseek-v3", "b200", gpus=8).flags.values


def test_a_quantised_name_without_an_owner_says_what_to_serve() -> None:
    found = planned("qwen2-7b-awq")
    assert found.model.weights == "int4"
    assert any("serve one in place of this" in warning for warning in found.warnings)


def test_chart_values_for_either_engine() -> None:
    found = planned()
    assert "type: vllm" in found.flags.values
    assert "--max-num-seqs=57" in found.flags.values
    assert "type: sglang" in found.flags.sglang_values
    assert "--max-running-requests=57" in found.flags.sglang_values


def test_amd_gets_images_of_rocm() -> None:
    """The chart's own are CUDA's. vLLM has a repository for ROCm, SGLang tags that must be looked up."""
    found = planned(gpu="mi300x")
    image = {"repository": "vllm/vllm-openai-rocm"}
    assert msgspec.yaml.decode(found.flags.values)["engine"]["image"] == image
    sglang = {"repository": "lmsysorg/sglang", "tag": "SET-A-ROCM-TAG"}
    assert msgspec.yaml.decode(found.flags.sglang_values)["engine"]["image"] == sglang
    assert any("`image:` names ROCm's" in note for note in found.notes)
    assert "image" not in msgspec.yaml.decode(planned().flags.values)["engine"]
    assert not any("chart values" in note for note in planned().notes)


def test_a_mean_request_beyond_what_the_model_knows_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="knows 32,768 positions") as refused:
        planned(input_mean=32_468 + 1, output_mean=300)
    assert refused.value.param == "input_mean"
    assert planned(input_mean=32_468, output_mean=300).max_model_len == 32_768


def test_what_engines_cannot_do_is_said() -> None:
    assert any("SGLang has no int8 K/V" in warning for warning in planned(kv="int8").warnings)
    assert any("need a checkpoint quantised so" in warning for warning in planned(weights="int4").warnings)
    assert any("no fp8 units" in warning for warning in planned(gpu="a10g", weights="fp8").warnings)


def test_a_plan_survives_json() -> None:
    found = planned("gemma-3-27b", "h200", scenario="long-document")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Plan) == found


@pytest.mark.parametrize("gpu", ["l4", "h100", "b200", "mi300x"])
@pytest.mark.parametrize("entry", CATALOG.models, ids=lambda entry: entry.name)
def test_every_model_is_planned_or_refused_with_a_number(entry: Any, gpu: str) -> None:
    try:
        found = planned(entry.name, gpu)
    except DoesNotFit as refusal:
        assert refusal.gpus_needed is None or refusal.gpus_needed > 1  # noqa: PT017
    else:
        assert found.kv_tokens >= found.max_model_len
        assert 1 <= found.max_num_seqs <= 1024
