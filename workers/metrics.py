"""What the engine exports, under vLLM's names and labels.

Counters and gauges of the engine's state are read from it when Prometheus scrapes; what belongs to single
requests (latencies, how they ended) is observed on their way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.types import Clock
from workers.types import EngineConfig, EngineRequest, FinishReason

# bucket bounds are vLLM's, so that dashboards made for it fit
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
         40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
        80.0)  # fmt: skip
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
            480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_REASONS = ("stop", "length", "abort", "error")


class EngineStats(Protocol):
    """The engine's state at one moment. Cached counts are tokens."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_cache_usage(self) -> float:
        """Share of blocks in use, 0…1; blocks that are cached but free count as unused."""
        ...

    @property
    def prefix_cache_queries(self) -> int: ...
    @property
    def prefix_cache_hits(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generation_tokens(self) -> int: ...


class Ends(Protocol):
    """A step of an answer, as far as it is measured."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def cached_tokens(self) -> int: ...


Step = TypeVar("Step", bound=Ends)


class EngineMetrics:
    """The exporter of one engine, on a registry of its own."""

    def __init__(self, config: EngineConfig, stats: Callable[[], EngineStats], clock: Clock) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        labels = {"engine": "0", "model_name": config.model}

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            metric = Histogram(f"vllm:{name}", text, list(labels), buckets=buckets, registry=self._registry)
            return metric.labels(**labels)

        self._ttft = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _TTFT
        )
        self._gap = histogram("inter_token_latency_seconds", "Between two tokens of one sequence.", _GAP)
        self._latency = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its last token.", _LATENCY
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time of an output token after the first.", _GAP
        )
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a finished request.", _TOKENS)
        self._generated = histogram(
            "request_generation_tokens", "Tokens generated for a finished request.", _TOKENS
        )
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that were not found in the cache.", _TOKENS
        )
        self._max_tokens = histogram(
            "request_params_max_tokens", "The max_tokens a request asked for.", _TOKENS
        )
        success = Counter(
            "vllm:request_success",
            "Finished requests, by how they ended.",
            [*labels, "finished_reason"],
            registry=self._registry,
        )
        self._ended = {reason: success.labels(**labels, finished_reason=reason) for reason in _REASONS}
        self._registry.register(_EngineState(config, stats, labels))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    async def observe(
        self, request: EngineRequest, steps: AsyncGenerator[Step, None]
    ) -> AsyncGenerator[Step, None]:
        """`steps` as they are, measured. A sequence that is closed before its end counts as aborted."""
        arrived = self._clock()
        first, last, tokens, cached = 0.0, 0.0, 0, 0
        reason = "abort"
        try:
            async with aclosing(steps):
                async for step in steps:
                    if step.token_ids:
                        now = self._clock()
                        if tokens == 0:
                            first, cached = now, step.cached_tokens
                            self._ttft.observe(now - arrived)
                        else:
                            self._gap.observe(now - last)
                        tokens += len(step.token_ids)
                        last = now
                    if step.finish_reason is not None:
                        reason = step.finish_reason
                    yield step
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except Exception:
            reason = "error"
            raise
        finally:
            self._ended[reason].inc()
        if tokens:
            self._latency.observe(self._clock() - arrived)
            self._prompt.observe(len(request.prompt_token_ids))
            self._computed.observe(len(request.prompt_token_ids) - cached)
            self._generated.observe(tokens)
            self._max_tokens.observe(request.sampling.max_tokens)
            self._per_token.observe((last - first) / (tokens - 1) if tokens > 1 else 0.0)


class _EngineState(Collector):
    """Reads the engine at every scrape."""

    def __init__(
        self, config: EngineConfig, stats: Callable[[], EngineStats], labels: Mapping[str, str]
    ) -> None:
        self._config = config
        self._stats = stats
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield self._gauge("num_requests_running", "Sequences in the running batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences waiting to be scheduled.", stats.waiting)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of K/V blocks in use, 0 to 1; cached blocks that nobody uses count as free.",
            stats.kv_cache_usage,
        )
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries
        )
        yield self._counter(
            "prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits
        )
        yield self._counter(
            "num_preemptions",
            "Times that a running sequence was put back to be recomputed.",
            stats.preemptions,
        )
        yield self._counter("prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._cache_config()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _cache_config(self) -> Metric:
        config = self._config
        values = {
            "block_size": str(config.block_size),
            "cache_dtype": config.kv_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "engine": self._labels["engine"],
            "kv_cache_size_tokens": str(config.num_blocks * config.block_size),
            "num_gpu_blocks": str(config.num_blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "The K/V cache's configuration.", labels=list(values)
        )
        family.add_metric(list(values.values()), 1.0)
        return family
