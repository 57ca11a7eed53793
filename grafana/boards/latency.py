"""How long people wait, and for what."""

from __future__ import annotations

from grafana.panels import MODEL, RATE, REPLICA, Board, Panel, Query, Row, text_variable
from grafana.queries import TTFT_BY_SHARE, heatmap, per_second, percentiles, quantile

LATENCY = Board(
    "prefix-gateway-latency",
    "Latency",
    "Time to first token, between tokens, and in the gateway itself.",
    (
        Row(
            "Time to first token",
            (
                percentiles(
                    "TTFT",
                    "From a request's arrival to its first piece of answer; streamed answers.",
                    "gateway_ttft_seconds",
                ),
                TTFT_BY_SHARE,
                Panel(
                    "Later than the objective",
                    "Share of streamed answers that started later than $objective s (a bucket bound: 0.5, 0.8, "
                    "1, 1.6, 2.5, 5 …). The alert's budget is 5 % at 2.5 s.",
                    (
                        Query(
                            f'1 - sum (rate(gateway_ttft_seconds_bucket{{{MODEL},le="$objective"}}{RATE})) '
                            f"/ (sum (rate(gateway_ttft_seconds_count{{{MODEL}}}{RATE})) > 0)",
                            "late",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    steps=((None, "green"), (0.05, "red")),
                ),
                heatmap(
                    "TTFT, all of them", "Streamed answers by time to first token.", "gateway_ttft_seconds"
                ),
                heatmap(
                    "Time between tokens, all of them",
                    "Streamed answers by the mean time between their pieces.",
                    "gateway_inter_token_seconds",
                ),
            ),
        ),
        Row(
            "Between tokens and in all",
            (
                percentiles(
                    "Time between tokens",
                    "Mean gap between the pieces of one answer.",
                    "gateway_inter_token_seconds",
                ),
                percentiles(
                    "Whole request", "Arrival to last byte, every outcome.", "gateway_request_seconds"
                ),
                Panel(
                    "Whole request by outcome, p99",
                    "What a failure costs its client, too.",
                    (Query(quantile(0.99, "gateway_request_seconds", MODEL, "outcome"), "{{outcome}}"),),
                    unit="s",
                    lowest=0,
                ),
            ),
        ),
        Row(
            "In the gateway",
            (
                percentiles(
                    "Routing decision",
                    "Tokenising, keys, match, score and choice; waiting in the queue included.",
                    "gateway_decision_seconds",
                ),
                Panel(
                    "Tokenising, p99",
                    "By where tokens come from. engine is a call to the engine's own tokenizer: local files are "
                    "faster.",
                    (
                        Query(
                            quantile(0.99, "gateway_tokenize_seconds", MODEL, "model, source"),
                            "{{model}} {{source}}",
                        ),
                    ),
                    unit="s",
                    lowest=0,
                ),
                Panel(
                    "Event lag",
                    "From an engine's event to the index, p50 and p99. Clocks of two machines are in it.",
                    (
                        Query(quantile(0.5, "gateway_event_lag_seconds", REPLICA), "p50"),
                        Query(quantile(0.99, "gateway_event_lag_seconds", REPLICA), "p99"),
                    ),
                    unit="s",
                    lowest=0,
                ),
                Panel(
                    "Retries by reason",
                    "Tries that failed before the first byte and moved to another worker: time that was lost.",
                    (Query(per_second("gateway_retries_total", REPLICA, "reason"), "{{reason}}"),),
                    unit="reqps",
                    lowest=0,
                    quiet=True,
                    width=12,
                ),
                Panel(
                    "Long prompts in slices",
                    "Requests whose prompt went to its worker in slices, so that others passed, and the slices that "
                    "were asked for ahead of them (`slice_after`).",
                    (
                        Query(per_second("gateway_sliced_requests_total"), "requests"),
                        Query(per_second("gateway_slices_total"), "slices"),
                    ),
                    unit="reqps",
                    lowest=0,
                    width=12,
                ),
            ),
        ),
    ),
    variables=(
        text_variable("objective", "Objective (s)", "2.5", "TTFT that 95 % of streamed answers should keep."),
    ),
)
