"""Expressions that several boards share."""

from __future__ import annotations

from grafana.panels import ENGINE, MODEL, RATE, WORKER, Panel, Query


def per_second(metric: str, where: str = MODEL, by: str = "") -> str:
    """``sum by (…) (rate(metric{…}))``"""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{{{where}}}{RATE}))"


def quantile(q: float, metric: str, where: str = MODEL, by: str = "") -> str:
    """Of a histogram, over all that `where` lets through; no data (instead of NaN) where nothing flows."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {per_second(f'{metric}_bucket', where, groups)}) >= 0"


def highest(expr: str, by: str = "worker") -> str:
    """The ten series that are highest on average over the time shown: the same ten at every moment, where
    topk alone would show each one that was ever among them. `expr` has the labels `by` and no others."""
    return f"({expr}) and on ({by}) topk(10, avg_over_time(({expr})[$__range:$__interval] @ end()))"


def ratio(part: str, whole: str, where: str = MODEL, by: str = "") -> str:
    """Share of `whole`; no data where nothing flows."""
    return f"{per_second(part, where, by)} / ({per_second(whole, where, by)} > 0)"


def engines(vllm: str, sglang: str, over: str = "{}") -> str:
    """What engines say of themselves, each by its own name for it; `over` is what is done with either. Of a
    data-parallel rank of SGLang each scheduler tells the same, and with priorities once more by each."""
    of_one = over.format(f'sglang:{sglang}{{{ENGINE},priority=""}}')
    return (
        f"{over.format(f'vllm:{vllm}{{{ENGINE}}}')} or max without (tp_rank, pp_rank, moe_ep_rank) ({of_one})"
    )


KV_IN_USE = engines("kv_cache_usage_perc", "token_usage")
RUNNING = engines("num_requests_running", "num_running_reqs")
WAITING = engines("num_requests_waiting", "num_queue_reqs")
PREEMPTED = engines("num_preemptions_total", "num_retracted_requests_total", f"rate({{}}{RATE})")

REUSABLE = ratio("gateway_reusable_tokens_total", "gateway_prompt_tokens_total")
PROMISED = ratio("gateway_matched_tokens_total", "gateway_prompt_tokens_total")
DELIVERED = ratio("gateway_cached_tokens_total", "gateway_reported_prompt_tokens_total")

ERRORS = (
    f'sum (rate(gateway_requests_total{{{MODEL},code=~"5.."}}{RATE})) '
    f"/ (sum (rate(gateway_requests_total{{{MODEL}}}{RATE})) > 0) or vector(0)"
)

HIT_RATES = Panel(
    "Three hit rates",
    "Shares of prompt tokens. Reusable: some worker of the fleet held them. Promised: the chosen worker was "
    "known to hold them. Delivered: its engine says it served them from cache. Reusable over promised is the "
    "price of spreading load; promised over delivered is knowledge gone wrong.",
    (
        Query(REUSABLE, "reusable in the fleet"),
        Query(PROMISED, "promised by the chosen worker"),
        Query(DELIVERED, "delivered by the engine"),
    ),
    unit="percentunit",
    lowest=0,
    highest=1,
)

TTFT_BY_SHARE = Panel(
    "TTFT by matched share",
    "Median time to first token of streamed answers: cold (nothing matched), partial, warm (at least 80 % of "
    "the prompt matched). What the cache buys is the distance between cold and warm.",
    (Query(quantile(0.5, "gateway_ttft_seconds", MODEL, "cache"), "{{cache}}"),),
    unit="s",
    lowest=0,
)

# a moment's requests say little about few of them
_IN_FLIGHT = f"sum by (model, worker) (avg_over_time(gateway_inflight_requests{{{MODEL}}}{RATE}))"

LOAD_SPREAD = Panel(
    "Load spread",
    "Requests in flight, all replicas together: the busiest worker over the mean of the others, or over one "
    "where their mean is less. 1 is even; a hot spot stays high while others are idle. Empty for one worker.",
    (
        Query(
            f"max by (model) ({_IN_FLIGHT}) / clamp_min((sum by (model) ({_IN_FLIGHT}) - max by (model) "
            f"({_IN_FLIGHT})) / (count by (model) ({_IN_FLIGHT}) - 1 > 0), 1)",
            "{{model}}",
        ),
    ),
    lowest=0,
)


def percentiles(title: str, text: str, metric: str, where: str = MODEL, width: int = 8) -> Panel:
    return Panel(
        title,
        text,
        tuple(Query(quantile(q, metric, where), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
        unit="s",
        lowest=0,
        width=width,
    )


def heatmap(title: str, text: str, metric: str, width: int = 12) -> Panel:
    expr = f"sum by (le) (increase({metric}_bucket{{{MODEL}}}{RATE}))"
    return Panel(
        title, text, (Query(expr, "{{le}}", heatmap=True),), unit="short", kind="heatmap", width=width
    )


def busiest(
    title: str, text: str, expr: str, unit: str = "short", width: int = 8, *, quiet: bool = False
) -> Panel:
    """One line a worker, of the ten highest: a fleet of a hundred stays readable."""
    return Panel(
        title,
        f"{text} The ten highest.",
        (Query(highest(expr), "{{worker}}"),),
        unit=unit,
        lowest=0,
        width=width,
        quiet=quiet,
    )


def of_workers(metric: str, how: str = "sum") -> str:
    return f"{how} by (worker) ({metric}{{{WORKER}}})"
