"""Illnesses of single engines, told from their own metrics."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.diagnosis.dialects import SGLANG, VLLM
from gateway.diagnosis.engine_meters import Meters, mean
from gateway.diagnosis.facts import Facts
from gateway.diagnosis.finding import Evidence, Finding, Severity, percent

_FULL = 0.9
_SLOW_GAP_S = 0.05
"""Slower than this, reading along feels it: 20 tokens a second."""
_NARROW = 8.0
"""Sequences in a batch that leave a GPU's arithmetic idle."""
_ENOUGH_TOKENS = 40
_HALF_PRECISION_OR_MORE = ("auto", "bfloat16", "float16", "float32", "half", "float")
_CONFIG = "vllm:cache_config_info"
_ENOUGH_REQUESTS = 8
_LONGEST_PAGE = 64
"""Tokens: a prompt shorter than a page of SGLang's leaves nothing behind."""
_GPU_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"


def kv_contention(facts: Facts) -> Iterator[Finding]:
    """Latency leaps with concurrency: sequences fight for K/V blocks."""
    for engine in facts.engines:
        meters = Meters(engine.series)
        flags, preempted = meters.dialect, meters.preempted
        usage, waiting = max(meters.usage, default=0.0), mean(meters.waiting)
        starved = usage >= _FULL and waiting >= 0.5
        if not preempted and not starved:
            continue
        running = mean(meters.running)
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
                *_ttft(meters),
            ),
            "more sequences run than their K/V fits into memory; a preempted one loses its blocks and is "
            "computed again, which slows everybody",
            (
                f"lower {flags.sequences_flag} until preemptions stop",
                *(
                    ("raise --schedule-conservativeness: fewer are let in whose answers may not fit",)
                    if flags is SGLANG
                    else ()
                ),
                f"shorten {flags.length_flag}, or cap max_tokens",
                *_cheaper_kv(meters),
                f"give K/V more memory: {flags.memory_flag}, tensor parallelism, more workers "
                "(`prefix-gateway plan` says how much)",
            ),
            0.95 if preempted else 0.7,
        )


def batch_limit(facts: Facts) -> Iterator[Finding]:
    """Requests queue in the engine while K/V memory is free: the batch is capped."""
    for engine in facts.engines:
        meters = Meters(engine.series)
        flags, sglang = meters.dialect, meters.dialect is SGLANG
        running, waiting, usage = meters.running, meters.waiting, meters.usage
        top = max(running, default=0.0)
        rows = list(zip(running, waiting, usage, strict=False))
        capped = [r for r in rows if r[0] == top and r[1] >= 1 and r[2] < 0.8]
        if len(rows) < 4 or not top or 2 * len(capped) < len(rows) or meters.preempted:
            continue
        if not meters.generated:
            continue
        queued = mean(waiting)
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
                *_ttft(meters),
            ),
            f"{flags.sequences_flag} is {top:.0f} or little more, and more requests than that are here"
            # SGLang reserves what a request may still generate before it lets it in
            + (", or memory is kept back for answers that are not written yet" if sglang else ""),
            (
                f"raise {flags.sequences_flag}: memory allows it (`prefix-gateway plan` says how far)",
                *(("lower --schedule-conservativeness where fewer run than that",) if sglang else ()),
                "add workers, or set max_requests per worker so that the gateway queues with priorities",
            ),
            0.75 if sglang else 0.85,
        )


def bandwidth_bound(facts: Facts) -> Iterator[Finding]:
    """GPU idle, yet slow: each step reads all weights and K/V for a handful of tokens."""
    for engine in facts.engines:
        meters = Meters(engine.series)
        gap, running = meters.gap, [value for value in meters.running if value > 0]
        if gap is None or gap < _SLOW_GAP_S or len(running) < 2:
            continue
        batch, usage, generated = mean(running), max(meters.usage, default=0.0), meters.generated
        idle = not any(meters.waiting) and not meters.preempted and usage < 0.5
        # prefill beside decode slows steps too, and is another illness
        decoding = generated >= _ENOUGH_TOKENS and meters.computed <= 4 * generated
        if not idle or not decoding or batch > _NARROW:
            continue
        used = engine.series.last(_GPU_UTILISATION)
        yield Finding(
            "bandwidth-bound",
            Severity.WARNING,
            engine.url,
            "tokens come slowly although the engine has nearly nothing to do",
            (
                Evidence("time between tokens, mean", 1000 * gap, "ms"),
                Evidence("running requests while any ran, mean", batch),
                Evidence("waiting requests", 0.0),
                Evidence("K/V usage, peak", percent(usage)),
                Evidence("tokens generated", generated),
                *((Evidence("GPU utilisation", used, "%"),) if used is not None else ()),
            ),
            "decoding reads all weights and the whole context from memory for every step, however few "
            "tokens it makes: bandwidth is the limit, and arithmetic idles",
            (
                *_cheaper_kv(meters),
                "quantise the weights (fp8, int4): half the bytes is nearly half the time",
                "batch more: fewer workers with more requests each cost no latency here",
                "speculative decoding: more tokens a step for the same reading",
            ),
            0.85 if used is not None and used < 50 else 0.7,
        )


def prefix_caching_off(facts: Facts) -> Iterator[Finding]:
    for engine in facts.engines:
        meters = Meters(engine.series)
        told = _says_so(meters) if meters.dialect is VLLM else _keeps_nothing(meters)
        if told:
            yield Finding(
                "prefix-caching-off",
                Severity.CRITICAL,
                engine.url,
                "the engine caches no prefixes, so every prompt is computed in full",
                (*told, Evidence("prompt tokens processed", meters.prompts)),
                "it was started with prefix caching off"
                + ("" if meters.dialect is VLLM else ", or SGLang switches it off for this model"),
                (meters.dialect.caching_remedy,),
                1.0 if meters.dialect is VLLM else 0.85,
            )


def _says_so(meters: Meters) -> tuple[Evidence, ...]:
    off = any(c.get("enable_prefix_caching") == "False" for c in meters.series.labels(_CONFIG))
    return (Evidence("enable_prefix_caching", "False"),) if off else ()


def _keeps_nothing(meters: Meters) -> tuple[Evidence, ...]:
    """SGLang has no metric for it: where a cache is, what ended requests leave behind can be evicted."""
    requests = meters.series.increase("sglang:num_requests_total")
    kept = meters.series.values("sglang:kv_evictable_tokens")
    cached = meters.series.increase("sglang:cached_tokens_total")
    if requests < _ENOUGH_REQUESTS or meters.prompts < _LONGEST_PAGE * requests or not kept:
        return ()
    if any(kept) or cached:
        return ()
    return (Evidence("requests that ended", requests), Evidence("tokens that they left in the cache", 0.0))


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
                (
                    "let this machine reach the engine's port",
                    "SGLang has no /metrics (404) unless it is started with --enable-metrics",
                    "or read a Prometheus: --prometheus URL",
                ),
                0.9,
            )


def _ttft(meters: Meters) -> tuple[Evidence, ...]:
    p50, p99 = meters.ttft(0.5), meters.ttft(0.99)
    if p50 is None or p99 is None:
        return ()
    return (Evidence("TTFT p50", p50, "s"), Evidence("TTFT p99", p99, "s"))


def _cheaper_kv(meters: Meters) -> tuple[str, ...]:
    """SGLang does not say how it keeps K/V."""
    kept = {c.get("cache_dtype", "auto") for c in meters.series.labels(_CONFIG)} or {"auto"}
    if kept <= set(_HALF_PRECISION_OR_MORE):
        return (f"keep K/V in fp8 ({meters.dialect.fp8_flag}): half the bytes of 16 bits, twice the tokens",)
    return ()
