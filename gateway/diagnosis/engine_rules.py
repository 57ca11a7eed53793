"""Illnesses of single engines, told from their own metrics (vLLM's names)."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.diagnosis.facts import Engine, Facts
from gateway.diagnosis.finding import Evidence, Finding, Severity, percent

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
CONFIG = "vllm:cache_config_info"
GENERATED = "vllm:generation_tokens_total"
TTFT = "vllm:time_to_first_token_seconds"
GAPS = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Newer and older name."""

_FULL = 0.9
_SLOW_GAP_S = 0.05
"""Slower than this, reading along feels it: 20 tokens a second."""
_NARROW = 8.0
"""Sequences in a batch that leave a GPU's arithmetic idle."""
_ENOUGH_TOKENS = 40
_HALF_PRECISION_OR_MORE = ("auto", "bfloat16", "float16", "float32", "half", "float")
_GPU_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"


def kv_contention(facts: Facts) -> Iterator[Finding]:
    """Latency leaps with concurrency: sequences fight for K/V blocks."""
    for engine in facts.engines:
        series = engine.series
        preempted = series.increase(PREEMPTIONS)
        usage, waiting = series.peak(USAGE), series.mean(WAITING)
        starved = usage >= _FULL and waiting >= 0.5
        if not preempted and not starved:
            continue
        running = series.mean(RUNNING)
        hard = preempted > 0 and waiting > running
        yield Finding(
            "kv-contention",
            Severity.CRITICAL if hard else Severity.WARNING,
            engine.url,
            "latency leaps with concurrency: running sequences fight for K/V blocks",
            (
                Evidence("preemptions", preempted),
                Evidence("K/V usage, peak", percent(usage)),
                Evidence("waiting requests, mean", waiting),
                Evidence("running requests, mean", running),
                *_ttft(engine),
            ),
            "more sequences run than their K/V fits into memory; a preempted one loses its blocks and is "
            "computed again, which slows everybody",
            (
                "lower --max-num-seqs until preemptions stop",
                "shorten --max-model-len, or cap max_tokens",
                *_cheaper_kv(engine),
                "give K/V more memory: --gpu-memory-utilization, tensor parallelism, more workers "
                "(`prefix-gateway plan` says how much)",
            ),
            0.95 if preempted else 0.7,
        )


def batch_limit(facts: Facts) -> Iterator[Finding]:
    """Requests queue in the engine while K/V memory is free: the batch is capped."""
    for engine in facts.engines:
        series = engine.series
        running, waiting, usage = (series.values(name) for name in (RUNNING, WAITING, USAGE))
        top = max(running, default=0.0)
        rows = list(zip(running, waiting, usage, strict=False))
        capped = [r for r in rows if r[0] == top and r[1] >= 1 and r[2] < 0.8]
        if len(rows) < 4 or not top or 2 * len(capped) < len(rows) or series.increase(PREEMPTIONS):
            continue
        if not series.increase(GENERATED):
            continue
        queued = sum(waiting) / len(waiting)
        yield Finding(
            "batch-limit",
            Severity.CRITICAL if queued > 2 * top else Severity.WARNING,
            engine.url,
            "requests queue inside the engine while K/V memory is free",
            (
                Evidence("waiting requests, mean", queued),
                Evidence("running requests, never more than", top),
                Evidence("K/V usage, peak", percent(max(usage))),
                Evidence("scrapes with both", percent(len(capped) / len(rows))),
                *_ttft(engine),
            ),
            f"--max-num-seqs is {top:.0f} or little more, and more requests than that are here",
            (
                "raise --max-num-seqs: memory allows it (`prefix-gateway plan` says how far)",
                "add workers, or set max_requests per worker so that the gateway queues with priorities",
            ),
            0.85,
        )


def bandwidth_bound(facts: Facts) -> Iterator[Finding]:
    """GPU idle, yet slow: each step reads all weights and K/V for a handful of tokens."""
    for engine in facts.engines:
        series = engine.series
        gap = next((v for v in (series.average(name) for name in GAPS) if v is not None), None)
        running = [value for value in series.values(RUNNING) if value > 0]
        if gap is None or gap < _SLOW_GAP_S or len(running) < 2:
            continue
        batch = sum(running) / len(running)
        generated = series.increase(GENERATED)
        computed = series.increase("vllm:request_prefill_kv_computed_tokens_sum")
        idle = series.peak(WAITING) == 0 and not series.increase(PREEMPTIONS) and series.peak(USAGE) < 0.5
        # prefill beside decode slows steps too, and is another illness
        decoding = generated >= _ENOUGH_TOKENS and computed <= 4 * generated
        if not idle or not decoding or batch > _NARROW:
            continue
        used = series.last(_GPU_UTILISATION)
        yield Finding(
            "bandwidth-bound",
            Severity.WARNING,
            engine.url,
            "tokens come slowly although the engine has nearly nothing to do",
            (
                Evidence("time between tokens, mean", 1000 * gap, "ms"),
                Evidence("running requests while any ran, mean", batch),
                Evidence("waiting requests", 0.0),
                Evidence("K/V usage, peak", percent(series.peak(USAGE))),
                Evidence("tokens generated", generated),
                *((Evidence("GPU utilisation", used, "%"),) if used is not None else ()),
            ),
            "decoding reads all weights and the whole context from memory for every step, however few "
            "tokens it makes: bandwidth is the limit, and arithmetic idles",
            (
                *_cheaper_kv(engine),
                "quantise the weights (fp8, int4): half the bytes is nearly half the time",
                "batch more: fewer workers with more requests each cost no latency here",
                "speculative decoding: more tokens a step for the same reading",
            ),
            0.85 if used is not None and used < 50 else 0.7,
        )


def prefix_caching_off(facts: Facts) -> Iterator[Finding]:
    for engine in facts.engines:
        off = [c for c in engine.series.labels(CONFIG) if c.get("enable_prefix_caching") == "False"]
        if off:
            yield Finding(
                "prefix-caching-off",
                Severity.CRITICAL,
                engine.url,
                "the engine caches no prefixes, so every prompt is computed in full",
                (
                    Evidence("enable_prefix_caching", "False"),
                    Evidence("prompt tokens processed", engine.series.increase("vllm:prompt_tokens_total")),
                ),
                "it was started with prefix caching off",
                ("start it with --enable-prefix-caching (vLLM's default)",),
                1.0,
            )


def engine_silent(facts: Facts) -> Iterator[Finding]:
    """No metrics: nothing can be said about it."""
    for engine in facts.engines:
        if engine.error and not engine.series.scrapes:
            yield Finding(
                "engine-metrics-missing",
                Severity.WARNING,
                engine.url,
                "the engine's /metrics can't be read, so its illnesses can't be told",
                (Evidence("error", engine.error),),
                "it is down, behind a firewall, or serves metrics elsewhere",
                ("let this machine reach the engine's port", "or read a Prometheus: --prometheus URL"),
                0.9,
            )


def _ttft(engine: Engine) -> tuple[Evidence, ...]:
    p50, p99 = (engine.series.quantile(TTFT, q) for q in (0.5, 0.99))
    if p50 is None or p99 is None:
        return ()
    return (Evidence("TTFT p50", p50, "s"), Evidence("TTFT p99", p99, "s"))


def _cheaper_kv(engine: Engine) -> tuple[str, ...]:
    kept = {c.get("cache_dtype", "auto") for c in engine.series.labels(CONFIG)} or {"auto"}
    if kept <= set(_HALF_PRECISION_OR_MORE):
        return ("keep K/V in fp8 (--kv-cache-dtype fp8): half the bytes of 16 bits, twice the tokens",)
    return ()
