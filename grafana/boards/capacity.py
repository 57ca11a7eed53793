"""How much more fits: bounds, queue, memory, and when they will be reached."""

from __future__ import annotations

from grafana.panels import MODEL, RATE, REPLICA, Board, Panel, Query, Row, on_the_right
from grafana.queries import KV_IN_USE, PREEMPTED, RUNNING, WAITING, per_second, quantile

BYTES_A_BLOCK = 200
"""At most, in a mirror: docs/redis.md has the measurement."""

_ALL_BLOCKS = f"sum (max by (worker) (gateway_capacity_blocks{{{MODEL}}}))"

_PROCESSES = f"(gateway_processes{{{REPLICA}}} or gateway_ready{{{REPLICA}}} * 0 + 1)"
"""Of each replica: with `--processes` several, else one."""

CAPACITY = Board(
    "prefix-gateway-capacity",
    "Capacity",
    "How much more fits, and what will be full first.",
    (
        Row(
            "Engines",
            (
                Panel(
                    "K/V memory in use",
                    "Mean and highest over all engines, by requests that run. Near 1, new requests wait or push "
                    "others out.",
                    (
                        Query(f"avg ({KV_IN_USE})", "mean"),
                        Query(f"max ({KV_IN_USE})", "highest"),
                    ),
                    unit="percentunit",
                    lowest=0,
                    highest=1,
                ),
                Panel(
                    "Running and waiting",
                    "Requests inside engines.",
                    (
                        Query(f"sum ({RUNNING})", "running"),
                        Query(f"sum ({WAITING})", "waiting"),
                    ),
                    lowest=0,
                    stacked=True,
                ),
                Panel(
                    "Preemptions",
                    "Requests thrown out for lack of K/V memory, a second.",
                    (Query(f"sum ({PREEMPTED})", "preemptions"),),
                    lowest=0,
                ),
                Panel(
                    "Cache in use",
                    "Blocks that the index knows, of all blocks that the engines have. Full is normal: a cache "
                    "keeps what it can. What matters is whether the hit rate is below what more memory would give "
                    "(`prefix-gateway doctor`).",
                    (
                        Query(
                            f"max by (model) (sum by (instance, model) (gateway_index_blocks{{{MODEL}}}) "
                            f"/ (sum by (instance, model) (gateway_capacity_blocks{{{MODEL}}}) > 0))",
                            "{{model}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    highest=1,
                ),
                Panel(
                    "Throughput per worker",
                    "Tokens a second and ready worker: computed in prefill, and generated.",
                    (
                        Query(
                            f"({per_second('gateway_reported_prompt_tokens_total')} "
                            f"- {per_second('gateway_cached_tokens_total')}) "
                            f"/ count (max by (worker) (gateway_worker_ready{{{MODEL}}}) == 1)",
                            "prefill",
                        ),
                        Query(
                            f"{per_second('gateway_completion_tokens_total')} "
                            f"/ count (max by (worker) (gateway_worker_ready{{{MODEL}}}) == 1)",
                            "generated",
                        ),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Requests per ready worker",
                    "In flight, and TTFT (right). What TTFT does as the other grows says where the fleet's bound is.",
                    (
                        Query(
                            f"sum (avg_over_time(gateway_inflight_requests{{{MODEL}}}{RATE})) "
                            f"/ count (max by (worker) (gateway_worker_ready{{{MODEL}}}) == 1)",
                            "in flight",
                        ),
                        Query(quantile(0.9, "gateway_ttft_seconds"), "TTFT p90"),
                    ),
                    lowest=0,
                    overrides=(on_the_right("TTFT p90", "s"),),
                ),
            ),
        ),
        Row(
            "Door",
            (
                Panel(
                    "Queue",
                    "Of its bound, by model: the fullest replica. Above it, requests are refused with 429.",
                    (
                        Query(
                            f"max by (model) (gateway_queue_requests{{{MODEL}}}) "
                            f"/ on () group_left min (gateway_queue_limit_requests{{{REPLICA}}}) "
                            f"or 0 * max by (model) (gateway_worker_ready{{{MODEL}}})",
                            "{{model}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    steps=((None, "green"), (0.5, "red")),
                ),
                Panel(
                    "Refused",
                    "Requests that nobody could take, by error, and those over their key's limits.",
                    (
                        Query(per_second("gateway_refusals_total", REPLICA, "error"), "{{error}}"),
                        Query(per_second("gateway_key_limited_total", REPLICA), "over a key's limits"),
                    ),
                    unit="reqps",
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Answered 429",
                    "Share of all requests: clients were told to come again later.",
                    (
                        Query(
                            f'sum (rate(gateway_requests_total{{{REPLICA},code="429"}}{RATE})) '
                            f"/ (sum (rate(gateway_requests_total{{{REPLICA}}}{RATE})) > 0) or vector(0)",
                            "429",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                ),
            ),
        ),
        Row(
            "Gateway",
            (
                Panel(
                    "Index, of its bound",
                    "The fullest replica, and what it comes to once all caches are full and no block is held "
                    "twice. At 1, least recently used prefixes are given up.",
                    (
                        Query(
                            f"max (gateway_index_distinct_blocks{{{REPLICA}}} "
                            f"/ gateway_index_limit_blocks{{{REPLICA}}})",
                            "now",
                        ),
                        Query(
                            f"{_ALL_BLOCKS} / min (gateway_index_limit_blocks{{{REPLICA}}})",
                            "all caches full",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    steps=((None, "green"), (0.9, "red")),
                ),
                Panel(
                    "CPU of a process, busiest replica",
                    "Cores; one process can use about one. Add replicas or processes before it reaches 1.",
                    (
                        Query(
                            f"max (rate(process_cpu_seconds_total{{{REPLICA}}}{RATE}) "
                            f"/ on (job, instance) {_PROCESSES})",
                            "cores",
                        ),
                    ),
                    lowest=0,
                    steps=((None, "green"), (0.8, "red")),
                ),
                Panel(
                    "Memory",
                    "Resident memory of the largest replica, and what it comes to once all caches are full and no "
                    f"block is held twice, at {BYTES_A_BLOCK} bytes a block (the operations guide). The limit of "
                    "its pod must be above.",
                    (
                        Query(f"max (process_resident_memory_bytes{{{REPLICA}}})", "now"),
                        Query(
                            f"max (process_resident_memory_bytes{{{REPLICA}}} + on (job, instance) "
                            f"{BYTES_A_BLOCK} * {_PROCESSES} * on () group_left () clamp_min("
                            f"{_ALL_BLOCKS} - max (gateway_index_distinct_blocks{{{REPLICA}}}), 0))",
                            "all caches full",
                        ),
                    ),
                    unit="bytes",
                    lowest=0,
                ),
            ),
        ),
    ),
)
