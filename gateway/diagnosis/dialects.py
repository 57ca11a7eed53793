"""What engines call the same things: metrics, and the flags that a remedy names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Meter: TypeAlias = tuple[str, Mapping[str, str]]
"""A counter, and the labels of those of its series that count."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where it has several names for one thing, the newest stands first."""

    running: str
    waiting: str
    usage: str
    preemptions: str
    generated: tuple[Meter, ...]
    computed: tuple[Meter, ...]
    prompts: str
    ttft: str
    gaps: tuple[str, ...]
    block_size: str
    """A gauge; empty where there is none."""
    block_size_labels: tuple[tuple[str, str], ...]
    """(metric, its label)"""

    sequences_flag: str
    length_flag: str
    memory_flag: str
    fp8_flag: str
    details_flag: str
    """`cached_tokens` in `usage`."""
    caching_remedy: str
    events_flag: str


_ENDPOINTS = '"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"'

VLLM = Dialect(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    usage="vllm:kv_cache_usage_perc",
    preemptions="vllm:num_preemptions_total",
    generated=(("vllm:generation_tokens_total", {}),),
    computed=(("vllm:request_prefill_kv_computed_tokens_sum", {}),),
    prompts="vllm:prompt_tokens_total",
    ttft="vllm:time_to_first_token_seconds",
    gaps=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    block_size="",
    block_size_labels=(("vllm:cache_config_info", "block_size"),),
    sequences_flag="--max-num-seqs",
    length_flag="--max-model-len",
    memory_flag="--gpu-memory-utilization",
    fp8_flag="--kv-cache-dtype fp8",
    details_flag="--enable-prompt-tokens-details",
    caching_remedy="start it with --enable-prefix-caching (vLLM's default)",
    events_flag=f"--kv-events-config '{{\"enable_kv_cache_events\": true, {_ENDPOINTS}}}'",
)

SGLANG = Dialect(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    usage="sglang:token_usage",
    preemptions="sglang:num_retracted_requests_total",
    # the first grow with each batch, the second when a request ends
    generated=(("sglang:realtime_tokens_total", {"mode": "decode"}), ("sglang:generation_tokens_total", {})),
    computed=(
        ("sglang:realtime_tokens_total", {"mode": "prefill_compute"}),
        ("sglang:uncached_prompt_tokens_histogram_sum", {}),
    ),
    prompts="sglang:prompt_tokens_total",
    ttft="sglang:time_to_first_token_seconds",
    gaps=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    block_size="sglang:page_size",
    block_size_labels=(("sglang:cache_config_info", "page_size"),),
    sequences_flag="--max-running-requests",
    length_flag="--context-length",
    memory_flag="--mem-fraction-static",
    fp8_flag="--kv-cache-dtype fp8_e4m3",
    details_flag="--enable-cache-report",
    caching_remedy="start it without --disable-radix-cache",
    events_flag=f"--kv-events-config '{{{_ENDPOINTS}}}'",
)

DIALECTS = (VLLM, SGLANG)
