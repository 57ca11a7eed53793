"""Each worker: state, load, cache, events, and what its engine says of itself."""

from __future__ import annotations

from grafana.panels import (
    MODEL,
    RATE,
    REPLICA,
    WORKER,
    Board,
    Json,
    Panel,
    Query,
    Row,
    label_variable,
)
from grafana.queries import (
    KV_IN_USE,
    LOAD_SPREAD,
    PREEMPTED,
    WAITING,
    busiest,
    highest,
    of_workers,
    per_second,
    quantile,
    ratio,
)


def _column(name: str, unit: str, width: int | None = None) -> Json:
    properties: list[Json] = [{"id": "unit", "value": unit}]
    if width is not None:
        properties.append({"id": "custom.width", "value": width})
    return {"matcher": {"id": "byName", "options": name}, "properties": properties}


_COLUMNS = (
    ("ready", of_workers("gateway_worker_ready", "min"), "bool_yes_no"),
    ("in flight", of_workers("gateway_inflight_requests"), "none"),
    ("waiting tokens", of_workers("gateway_waiting_tokens"), "short"),
    (
        "cache in use",
        f"max by (worker) (gateway_index_blocks{{{WORKER}}} / (gateway_capacity_blocks{{{WORKER}}} > 0))",
        "percentunit",
    ),
    (
        "hit rate",
        ratio("gateway_cached_tokens_total", "gateway_reported_prompt_tokens_total", WORKER, "worker"),
        "percentunit",
    ),
    ("requests/s", per_second("gateway_requests_total", WORKER, "worker"), "reqps"),
    ("drift", of_workers("gateway_promise_drift_ratio", "max"), "percentunit"),
    ("speed", of_workers("gateway_prefill_rate", "avg"), "none"),
)

_TABLE = Panel(
    "Workers",
    "All of them, as they stand now; click a column to sort. ready: gets requests from every replica. speed: "
    "prefill against the fleet's median.",
    tuple(Query(expr, name, table=True) for name, expr, _ in _COLUMNS),
    kind="table",
    width=24,
    height=9,
    overrides=tuple(_column(name, unit) for name, _, unit in _COLUMNS),
    transformations=(
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "renameByName": {
                    f"Value #{chr(ord('A') + i)}": name for i, (name, _, _) in enumerate(_COLUMNS)
                },
            },
        },
    ),
)


def _event_counter(title: str, text: str, metric: str, by: str = "worker") -> Panel:
    return Panel(
        title,
        text,
        (
            Query(
                f'topk(10, sum by ({by}) (increase({metric}{{{REPLICA},worker=~"$worker"}}[$__range])) > 0)',
                f"{{{{{by}}}}}",
                now=True,
            ),
        ),
        lowest=0,
        quiet=True,
        kind="bargauge",
    )


WORKERS = Board(
    "prefix-gateway-workers",
    "Workers",
    "State, load, cache and events of each worker. Readable with one of them and with a hundred.",
    (
        Row("All of them", (_TABLE,)),
        Row(
            "Load",
            (
                busiest(
                    "In flight",
                    "Requests there, all replicas.",
                    of_workers("gateway_inflight_requests"),
                    "none",
                ),
                busiest(
                    "Prefill that waits",
                    "Uncached prompt tokens of requests without a first byte.",
                    of_workers("gateway_waiting_tokens"),
                ),
                LOAD_SPREAD,
                busiest(
                    "Decoding",
                    "Context tokens of requests that decode: what attention reads each step.",
                    of_workers("gateway_decoding_tokens"),
                ),
                busiest(
                    "TTFT p90",
                    "Of streamed answers.",
                    quantile(0.9, "gateway_ttft_seconds", WORKER, "worker"),
                    "s",
                ),
                busiest(
                    "Requests",
                    "Ended there, a second.",
                    per_second("gateway_requests_total", WORKER, "worker"),
                    "reqps",
                ),
            ),
        ),
        Row(
            "Health",
            (
                Panel(
                    "States",
                    "Workers by state, as the replica sees it that sees most of them so.",
                    (
                        Query(
                            f"max by (state) (sum by (instance, state) (gateway_worker_state{{{WORKER}}}))",
                            "{{state}}",
                        ),
                    ),
                    stacked=True,
                    lowest=0,
                ),
                Panel(
                    "Tries that failed there",
                    "Before the first byte; they moved to another worker.",
                    (
                        Query(
                            highest(
                                "sum by (worker, reason) "
                                f'(rate(gateway_retries_total{{{REPLICA},worker=~"$worker"}}{RATE})) > 0',
                                "worker, reason",
                            ),
                            "{{worker}} {{reason}}",
                        ),
                    ),
                    unit="reqps",
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Not trusted just now",
                    "Breaker open, index degraded, events silent: 1 each, five of a kind at most.",
                    (
                        Query(
                            f"topk(5, max by (worker) (gateway_breaker_open{{{WORKER}}}) > 0)",
                            "breaker {{worker}}",
                        ),
                        Query(
                            f"topk(5, max by (worker) (gateway_worker_degraded{{{WORKER}}}) > 0)",
                            "degraded {{worker}}",
                        ),
                        Query(
                            f"topk(5, max by (worker) (gateway_events_silent{{{WORKER}}}) > 0)",
                            "silent {{worker}}",
                        ),
                    ),
                    lowest=0,
                    highest=1,
                    quiet=True,
                ),
            ),
        ),
        Row(
            "Discovery",
            (
                Panel(
                    "Listed and joined",
                    "Workers that a source lists and that are in the fleet, at the replica that has fewest; and "
                    "what it lists that can't be used. Empty without discovery.",
                    (
                        Query(
                            f"min by (source) (gateway_discovery_workers{{{REPLICA}}})", "{{source}}: joined"
                        ),
                        Query(
                            f"max by (source) (gateway_discovery_unusable{{{REPLICA}}})",
                            "{{source}}: can't be used",
                        ),
                    ),
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Since the last word",
                    "From where workers are listed, at the replica that waits longest. Kubernetes says something "
                    "every minute or so. The last list stands meanwhile.",
                    (Query(f"max by (source) (gateway_discovery_age_seconds{{{REPLICA}}})", "{{source}}"),),
                    unit="s",
                    lowest=0,
                    steps=((None, "green"), (300, "red")),
                    quiet=True,
                ),
                Panel(
                    "Lists, watches, failures",
                    "Over the time shown, all replicas. Many watches: something cuts the connections.",
                    (
                        Query(
                            f"sum by (source) (increase(gateway_discovery_lists_total{{{REPLICA}}}[$__range]))",
                            "{{source}}: lists",
                            now=True,
                        ),
                        Query(
                            f"sum by (source) (increase(gateway_discovery_watches_total{{{REPLICA}}}[$__range]))",
                            "{{source}}: watches",
                            now=True,
                        ),
                        Query(
                            "sum by (source, kind) "
                            f"(increase(gateway_discovery_failures_total{{{REPLICA}}}[$__range]))",
                            "{{source}}: {{kind}}",
                            now=True,
                        ),
                    ),
                    kind="bargauge",
                    quiet=True,
                ),
            ),
        ),
        Row(
            "KV events",
            (
                busiest(
                    "Blocks stored",
                    "By events, a second, at the replica that hears most.",
                    f'max by (worker) (rate(gateway_event_blocks_total{{{REPLICA},worker=~"$worker"}}{RATE}))',
                ),
                busiest(
                    "Event lag p99",
                    "From the engine's event to the index.",
                    quantile(0.99, "gateway_event_lag_seconds", f'{REPLICA},worker=~"$worker"', "worker"),
                    "s",
                ),
                Panel(
                    "Events heard",
                    "Workers whose events this fleet follows, and those that publish some.",
                    (
                        Query(
                            f"count (max by (worker) (gateway_events_following{{{WORKER}}}) == 1)", "heard"
                        ),
                        Query(f"count (max by (worker) (gateway_events_following{{{WORKER}}}))", "publish"),
                    ),
                    lowest=0,
                ),
                _event_counter(
                    "Gaps in the sequence",
                    "Each was replayed; over the time shown.",
                    "gateway_event_gaps_total",
                ),
                _event_counter(
                    "Histories that started over",
                    "New epochs by reason; over the time shown.",
                    "gateway_event_epochs_total",
                    "reason",
                ),
                busiest(
                    "Blocks without a parent",
                    "Stored, and kept aside until their parent turns up.",
                    of_workers("gateway_event_orphan_blocks", "max"),
                ),
            ),
        ),
        Row(
            "What engines say",
            (
                Panel(
                    "K/V memory in use",
                    "By requests that run; the engine's own figure (vLLM's or SGLang's), the ten highest.",
                    (
                        Query(
                            highest(f"max by (instance) ({KV_IN_USE})", "instance"),
                            "{{instance}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    highest=1,
                ),
                Panel(
                    "Waiting inside engines",
                    "Requests that an engine has and does not run yet, the ten highest.",
                    (
                        Query(
                            highest(f"sum by (instance) ({WAITING})", "instance"),
                            "{{instance}}",
                        ),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Preemptions",
                    "Requests thrown out for lack of K/V memory, a second, the ten highest.",
                    (
                        Query(
                            highest(
                                f"sum by (instance) ({PREEMPTED})",
                                "instance",
                            ),
                            "{{instance}}",
                        ),
                    ),
                    lowest=0,
                ),
            ),
        ),
    ),
    variables=(
        label_variable(
            "worker", "Worker", f"gateway_worker_ready{{{MODEL}}}", "worker", "One engine endpoint."
        ),
    ),
)
