"""What the cache holds, what it is worth, and where reuse is lost."""

from __future__ import annotations

from grafana.panels import (
    MODEL,
    RATE,
    REPLICA,
    WORKER,
    Board,
    Panel,
    Query,
    Row,
    label_variable,
    on_the_right,
    text_variable,
)
from grafana.queries import HIT_RATES, TTFT_BY_SHARE, busiest, per_second, ratio

_LOST_TO_LOAD = (
    f"({per_second('gateway_reusable_tokens_total')} - {per_second('gateway_matched_tokens_total')}) "
    f"/ ({per_second('gateway_prompt_tokens_total')} > 0)"
)

CACHE = Board(
    "prefix-gateway-cache",
    "Cache",
    "Hit rates, what they save, and where reuse is lost.",
    (
        Row(
            "Hit rates",
            (
                HIT_RATES,
                Panel(
                    "Where reuse is lost",
                    "To load: some worker held more, and would have answered later. To drift: promised and not "
                    "delivered. Shares of prompt tokens.",
                    (
                        Query(_LOST_TO_LOAD, "to load"),
                        Query(
                            f'sum (rate(gateway_promise_drift_tokens_total{{{REPLICA},direction="short"}}{RATE}))'
                            f" / ({per_second('gateway_prompt_tokens_total', REPLICA)} > 0) or vector(0)",
                            "to drift",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                ),
                Panel(
                    "Hit rate by model",
                    "Delivered, as the engines report it.",
                    (
                        Query(
                            ratio(
                                "gateway_cached_tokens_total",
                                "gateway_reported_prompt_tokens_total",
                                by="model",
                            ),
                            "{{model}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    highest=1,
                ),
            ),
        ),
        Row(
            "What it saved",
            (
                Panel(
                    "Prefill tokens saved",
                    "Prompt tokens a second that no GPU had to compute, and those that one had to.",
                    (
                        Query(per_second("gateway_cached_tokens_total"), "from cache"),
                        Query(
                            f"{per_second('gateway_reported_prompt_tokens_total')} "
                            f"- {per_second('gateway_cached_tokens_total')}",
                            "computed",
                        ),
                    ),
                    stacked=True,
                    lowest=0,
                ),
                Panel(
                    "GPUs not needed",
                    "GPU-seconds of prefill saved each second: that many GPUs would have to prefill all day. "
                    "Counts $prefill_rate tokens a second for one engine; write yours into the field above.",
                    (Query(f"{per_second('gateway_cached_tokens_total')} / $prefill_rate", "GPUs"),),
                    lowest=0,
                ),
                Panel(
                    "GPU-seconds saved",
                    "Over the time that the board shows, at $prefill_rate tokens a second.",
                    (
                        Query(
                            f"sum (increase(gateway_cached_tokens_total{{{MODEL}}}[$__range])) / $prefill_rate",
                            now=True,
                        ),
                    ),
                    unit="s",
                    kind="stat",
                    width=4,
                    steps=((None, "green"),),
                ),
                Panel(
                    "Prefill tokens saved",
                    "Over the time that the board shows.",
                    (Query(f"sum (increase(gateway_cached_tokens_total{{{MODEL}}}[$__range]))", now=True),),
                    kind="stat",
                    width=4,
                    steps=((None, "green"),),
                ),
                TTFT_BY_SHARE,
                Panel(
                    "Answers by matched share",
                    "Streamed answers: cold, partial, warm.",
                    (Query(per_second("gateway_ttft_seconds_count", by="cache"), "{{cache}}"),),
                    unit="reqps",
                    stacked=True,
                    lowest=0,
                ),
                Panel(
                    "Hottest prefixes' share",
                    "Requests that open like the single most used prompt, and like one of the ten most used "
                    "(their first 8 blocks). High: one system prompt for all, and every worker will hold it. "
                    "Low: reuse is within conversations.",
                    (
                        Query(
                            f"max by (model, top) (gateway_hot_prefix_share{{{MODEL}}})",
                            "{{model}} top {{top}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                    highest=1,
                ),
            ),
        ),
        Row(
            "What the index knows",
            (
                Panel(
                    "Index size",
                    "Distinct blocks that the replica knows that knows most, and what is given up a second at the "
                    "bound (right; the board Capacity shows how near that is).",
                    (
                        Query(f"max (gateway_index_distinct_blocks{{{REPLICA}}})", "blocks"),
                        Query(
                            f"sum (rate(gateway_index_evicted_blocks_total{{{REPLICA}}}{RATE}))",
                            "given up a second",
                        ),
                    ),
                    lowest=0,
                    overrides=(on_the_right("given up a second", "short"),),
                ),
                busiest(
                    "Cache in use",
                    "Blocks that the index holds for a worker, of those its engine has.",
                    f"max by (worker) (gateway_index_blocks{{{WORKER}}} / (gateway_capacity_blocks{{{WORKER}}} > 0))",
                    "percentunit",
                ),
                Panel(
                    "Copies of a block",
                    "Worker-block pairs over distinct blocks: how often the fleet holds the same. Near the number "
                    "of workers, the caches hold one and the same; near 1, they hold as much as they can.",
                    (
                        Query(
                            f"max (sum by (instance) (gateway_index_blocks{{{REPLICA}}}) "
                            f"/ (sum by (instance) (gateway_index_distinct_blocks{{{REPLICA}}}) > 0))",
                            "copies",
                        ),
                    ),
                    lowest=0,
                ),
                busiest(
                    "Promise drift",
                    "Decayed share of promised tokens that a worker did not deliver.",
                    f"max by (worker) (gateway_promise_drift_ratio{{{WORKER}}})",
                    "percentunit",
                ),
                Panel(
                    "Tokens that missed the promise",
                    "short: promised and not delivered; extra: delivered and not promised.",
                    (
                        Query(
                            f"sum by (direction) (rate(gateway_promise_drift_tokens_total{{{REPLICA}}}{RATE}))",
                            "{{direction}}",
                        ),
                    ),
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Tokenizer parity",
                    "Answers whose prompt tokens, as the engine counts them, differ from ours. Anything above "
                    "zero means wrong tokenizer files or chat template, and matches that are a lie.",
                    (
                        Query(
                            f'sum by (model) (rate(gateway_tokenizer_checks_total{{{MODEL},result="mismatch"}}{RATE})) '
                            f"/ (sum by (model) (rate(gateway_tokenizer_checks_total{{{MODEL}}}{RATE})) > 0) "
                            f"or 0 * sum by (model) (gateway_tokenizer_checks_total{{{MODEL}}})",
                            "{{model}}",
                        ),
                    ),
                    unit="percentunit",
                    lowest=0,
                ),
            ),
        ),
    ),
    variables=(
        label_variable(
            "worker", "Worker", f"gateway_worker_ready{{{MODEL}}}", "worker", "One engine endpoint."
        ),
        text_variable(
            "prefill_rate",
            "Prefill tokens/s",
            "8000",
            "Prompt tokens that one GPU prefills a second: see `prefix-gateway plan`, or measure it.",
        ),
    ),
)
