"""For a wall: is it well, is it fast, what does the cache buy."""

from __future__ import annotations

from grafana.panels import MODEL, RATE, REPLICA, Board, Panel, Query, Row
from grafana.queries import DELIVERED, ERRORS, HIT_RATES, LOAD_SPREAD, TTFT_BY_SHARE, per_second, quantile


def _stat(title: str, text: str, expr: str, unit: str, steps: tuple[tuple[float | None, str], ...]) -> Panel:
    return Panel(title, text, (Query(expr),), unit=unit, kind="stat", width=3, height=5, steps=steps)


_GOOD: tuple[tuple[float | None, str], ...] = ((None, "green"),)

OVERVIEW = Board(
    "prefix-gateway-overview",
    "Fleet overview",
    "One look: is the fleet well, is it fast, what does the cache buy.",
    (
        Row(
            "Now",
            (
                _stat(
                    "Requests",
                    "Requests that ended, a second, all replicas.",
                    per_second("gateway_requests_total"),
                    "reqps",
                    _GOOD,
                ),
                _stat(
                    "Errors",
                    "Share of requests answered 5xx.",
                    ERRORS,
                    "percentunit",
                    ((None, "green"), (0.005, "orange"), (0.02, "red")),
                ),
                _stat(
                    "TTFT p50",
                    "Median time to first token of streamed answers.",
                    quantile(0.5, "gateway_ttft_seconds"),
                    "s",
                    ((None, "green"), (1, "orange"), (2.5, "red")),
                ),
                _stat(
                    "TTFT p95",
                    "19 of 20 streamed answers start sooner.",
                    quantile(0.95, "gateway_ttft_seconds"),
                    "s",
                    ((None, "green"), (2.5, "orange"), (5, "red")),
                ),
                _stat(
                    "Hit rate",
                    "Prompt tokens served from the engines' caches (delivered).",
                    DELIVERED,
                    "percentunit",
                    ((None, "red"), (0.1, "orange"), (0.3, "green")),
                ),
                _stat(
                    "Workers away",
                    "Workers that get no requests: unhealthy, starting, draining, breaker open, ejected. Of "
                    "several replicas, the one that sees most of them away.",
                    f"max (count by (instance) (gateway_worker_ready{{{MODEL}}}) "
                    f"- sum by (instance) (gateway_worker_ready{{{MODEL}}}))",
                    "none",
                    ((None, "green"), (1, "orange")),
                ),
                _stat(
                    "In flight",
                    "Requests at the workers, all replicas.",
                    f"sum (gateway_inflight_requests{{{MODEL}}})",
                    "none",
                    _GOOD,
                ),
                _stat(
                    "Queue",
                    "Requests that wait because all workers are at their bounds.",
                    f"sum (gateway_queue_requests{{{MODEL}}}) or vector(0)",
                    "none",
                    ((None, "green"), (1, "orange"), (100, "red")),
                ),
            ),
        ),
        Row("What the cache buys", (HIT_RATES, TTFT_BY_SHARE, LOAD_SPREAD)),
        Row(
            "Traffic",
            (
                Panel(
                    "Requests by outcome",
                    "How requests ended. cancelled: the client left; busy: refused, all at their bounds.",
                    (Query(per_second("gateway_requests_total", by="outcome"), "{{outcome}}"),),
                    unit="reqps",
                    stacked=True,
                    lowest=0,
                ),
                Panel(
                    "Tokens",
                    "Prompt tokens routed and tokens generated.",
                    (
                        Query(per_second("gateway_prompt_tokens_total"), "prompt"),
                        Query(per_second("gateway_completion_tokens_total"), "generated"),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Why this worker",
                    "Decisions by reason. match: nobody holds more of the prompt; load: another holds more and "
                    "would answer later; media: it prefilled these images or sounds; cold: nobody holds anything; only: "
                    "no other candidate; last_resort: nobody is trusted; unread: its prompt could not be read.",
                    (Query(per_second("gateway_decisions_total", by="reason"), "{{reason}}"),),
                    unit="reqps",
                    stacked=True,
                    lowest=0,
                ),
            ),
        ),
        Row(
            "Health",
            (
                Panel(
                    "Replicas ready",
                    "Gateway processes that take traffic.",
                    (
                        Query(f"sum (gateway_ready{{{REPLICA}}})", "ready"),
                        Query(f"count (gateway_ready{{{REPLICA}}})", "running"),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Degraded, silent, open",
                    "Workers whose promises stopped coming true; whose engine stopped publishing events; whose "
                    "breaker is open.",
                    (
                        Query(f"sum (max by (worker) (gateway_worker_degraded{{{MODEL}}}))", "degraded"),
                        Query(f"sum (max by (worker) (gateway_events_silent{{{MODEL}}}))", "events silent"),
                        Query(f"sum (max by (worker) (gateway_breaker_open{{{MODEL}}}))", "breaker open"),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Requests nobody could take",
                    "Refused by routing, by error: ModelNotFound, Unavailable, Overloaded, InvalidRequest.",
                    (
                        Query(
                            f"sum by (error) (rate(gateway_refusals_total{{{REPLICA}}}{RATE}))", "{{error}}"
                        ),
                    ),
                    unit="reqps",
                    lowest=0,
                    quiet=True,
                ),
            ),
        ),
    ),
)
