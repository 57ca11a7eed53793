"""Every metric the gateway exports, with labels and help text (docs/metrics.md says what to do about each).

Counters and histograms live here. Gauges of live state (in-flight, index size, worker state) are read from
that state when Prometheus scrapes (`LiveState`), so that they can't drift from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.meters import Count, Counter, Histogram, Spread, later
from gateway.types import Reason

TTFT_SECONDS = (
    0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.07, 0.1, 0.125, 0.16, 0.2, 0.25, 0.32, 0.4, 0.5,
    0.64, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.5, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0,
)  # fmt: skip
"""A quarter apart where people notice, at most a half elsewhere; each is three series a worker."""
SECONDS = (
    0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
)  # fmt: skip
GAP_SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.016, 0.02, 0.025, 0.032, 0.04, 0.05, 0.064, 0.08, 0.1, 0.15,
    0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
LAG_SECONDS = (
    0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
)  # fmt: skip
REDIS_SECONDS = (
    0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.0075, 0.01,
    0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
DECISION_SECONDS = (
    0.00005, 0.000075, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.0035, 0.005,
    0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip

WORKER = ("model", "worker")

FAILURES = (
    ("upstream_error", 500), ("upstream_error", 502), ("upstream_error", 503), ("timeout", 504),
    ("busy", 429), ("internal_error", 500),
)  # fmt: skip
"""How requests that a worker was given fail: outcomes and codes that count from zero."""
UNROUTED = (
    ("upstream_error", 503), ("busy", 429), ("internal_error", 500),
    ("client_error", 400), ("client_error", 401), ("client_error", 404), ("client_error", 429),
)  # fmt: skip
"""How those end that no worker was given."""


class Registry(CollectorRegistry):
    """`before_reading` brings the metrics up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.before_reading: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Metric]:
        self.before_reading()
        return super().collect()


class Metrics:
    """The exporter. One per process, on a registry of its own; nothing is registered at import time."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._per_worker: dict[tuple[str, str], PerWorker] = {}
        self.endpoints: set[str] = set()
        """Those that requests come for."""
        self._unrouted = {"": Ends(self, "", "", UNROUTED)}
        self._of_workers: list[Counter | Histogram] = []
        self._decisions: dict[tuple[str, str, str], PerDecision] = {}

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            made = Counter(name, text, labels)
            self.registry.register(made)
            if "worker" in labels:
                self._of_workers.append(made)
            return made

        def histogram(
            name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...] = SECONDS
        ) -> Histogram:
            made = Histogram(name, text, labels, buckets)
            self.registry.register(made)
            if "worker" in labels:
                self._of_workers.append(made)
            return made

        self.requests = counter(
            "gateway_requests",
            "Requests answered, by how they ended.",
            ("endpoint", "model", "worker", "outcome", "code"),
        )
        self.ttft = histogram(
            "gateway_ttft_seconds",
            "Time to first token: from the request's arrival here to the first answer byte with content. "
            "`cache` is cold (nothing matched), partial, or warm (at least 80 % of the prompt matched).",
            (*WORKER, "cache"),
            TTFT_SECONDS,
        )
        self.inter_token = histogram(
            "gateway_inter_token_seconds",
            "Mean time between the chunks of one streamed answer.",
            WORKER,
            GAP_SECONDS,
        )
        self.request_seconds = histogram(
            "gateway_request_seconds",
            "Time from arrival to the last byte, by how it ended.",
            (*WORKER, "outcome"),
        )
        self.prompt_tokens = counter(
            "gateway_prompt_tokens", "Prompt tokens routed; of requests turned away, none.", WORKER
        )
        self.reusable_tokens = counter(
            "gateway_reusable_tokens",
            "Prompt tokens that some worker of the fleet held (best match).",
            WORKER,
        )
        self.matched_tokens = counter(
            "gateway_matched_tokens", "Prompt tokens that the chosen worker was promised to hold.", WORKER
        )
        self.cached_tokens = counter(
            "gateway_cached_tokens", "Prompt tokens that the engine reports as served from its cache.", WORKER
        )
        self.reported_prompt_tokens = counter(
            "gateway_reported_prompt_tokens",
            "Prompt tokens of the answers in which the engine reported its cached tokens: what "
            "gateway_cached_tokens_total is a share of.",
            WORKER,
        )
        self.completion_tokens = counter(
            "gateway_completion_tokens", "Tokens generated, as reported by the engine.", WORKER
        )
        self.sliced = counter(
            "gateway_sliced_requests", "Requests whose prompt went to its worker in slices.", WORKER
        )
        self.slices = counter(
            "gateway_slices", "Beginnings of prompts that were asked for ahead of their requests.", WORKER
        )
        self.retries = counter(
            "gateway_retries",
            "Tries that failed before the first byte and moved to another worker.",
            ("worker", "reason"),
        )
        self.decision_seconds = histogram(
            "gateway_decision_seconds",
            "Time a routing decision takes, tokenising included.",
            ("model",),
            DECISION_SECONDS,
        )
        self.tokenize_seconds = histogram(
            "gateway_tokenize_seconds",
            "Time from a request to its tokens, by where they come from: local, engine or bytes.",
            ("model", "source"),
            DECISION_SECONDS,
        )
        self.not_tokenised = counter(
            "gateway_untokenized_requests",
            "Requests routed without tokens, by reason.",
            ("model", "reason"),
        )
        self.decisions = counter(
            "gateway_decisions", "Routing decisions, by reason.", ("model", "policy", "reason")
        )
        self.shadow = counter(
            "gateway_shadow_decisions",
            "Decisions a shadow policy made beside the acting one.",
            ("model", "policy", "agrees"),
        )
        self.shadow_gain = counter(
            "gateway_shadow_gain_tokens",
            "Tokens ahead of first tokens that the shadow policy's choices would have saved.",
            ("model", "policy"),
        )
        self.shadow_loss = counter(
            "gateway_shadow_loss_tokens",
            "Tokens ahead of first tokens that the shadow policy's choices would have added.",
            ("model", "policy"),
        )
        self.refusals = counter(
            "gateway_refusals", "Requests that no worker could be given for, by error.", ("error",)
        )
        self.event_lag = histogram(
            "gateway_event_lag_seconds",
            "From an engine's event (its clock) to the index.",
            ("worker",),
            LAG_SECONDS,
        )
        self.event_batches = counter("gateway_event_batches", "KV event batches applied.", ("worker",))
        self.event_blocks = counter("gateway_event_blocks", "Blocks that events stored.", ("worker",))
        self.event_gaps = counter(
            "gateway_event_gaps", "Gaps in a worker's event sequence; each is replayed.", ("worker",)
        )
        self.event_replays_failed = counter(
            "gateway_event_replays_failed", "Replays that the engine did not answer in time.", ("worker",)
        )
        self.event_epochs = counter(
            "gateway_event_epochs", "New epochs: a worker's cache history started over.", ("worker", "reason")
        )
        self.events_malformed = counter(
            "gateway_events_malformed", "Events that could not be read.", ("worker",)
        )
        self.promise_drift_tokens = counter(
            "gateway_promise_drift_tokens",
            "Tokens by which delivery missed the promise (short) or beat it (extra).",
            ("worker", "direction"),
        )
        self.tokenizer_checks = counter(
            "gateway_tokenizer_checks",
            "Own prompt token count against the engine's: match or mismatch.",
            ("model", "result"),
        )
        self.unauthorized = counter("gateway_unauthorized", "Requests without a valid API key.")
        self.accepts_failed = counter(
            "gateway_accepts_failed",
            "Times that no connection could be taken, for want of file descriptors or memory.",
        )
        self.key_limited = counter(
            "gateway_key_limited", "Requests refused because their key had used up its limits.", ("key",)
        )
        self.key_requests = counter("gateway_key_requests", "Requests that were let in, by key.", ("key",))
        self.key_tokens = counter(
            "gateway_key_tokens", "Tokens of prompts and answers, as charged to a key.", ("key",)
        )
        self.door_stripped = counter(
            "gateway_door_stripped",
            "Fields and headers that steer an engine's insides, taken out.",
            ("name",),
        )

        self.redis_seconds = histogram(
            "gateway_redis_command_seconds",
            "Time that Redis takes for a command; no request waits for it.",
            ("command",),
            REDIS_SECONDS,
        )
        self.redis_failures = counter(
            "gateway_redis_failures", "Commands that Redis did not carry out, by kind.", ("kind",)
        )
        self.redis_refills = counter(
            "gateway_redis_refills",
            "Times a worker's blocks were written to Redis whole, by reason: lost is an emptied or "
            "failed-over Redis, overflow a long outage.",
            ("worker", "reason"),
        )
        self.mirror_loads = counter(
            "gateway_mirror_loads",
            "Times a worker's blocks were loaded whole from Redis, by reason: gap is trimmed history.",
            ("worker", "reason"),
        )
        self.takeovers = counter(
            "gateway_writer_takeovers", "Times this replica became a worker's writer.", ("worker",)
        )
        self.fenced = counter(
            "gateway_writer_fenced",
            "Times this replica was a worker's writer and found another in its place.",
            ("worker",),
        )

        self.tasks_failed = counter(
            "gateway_tasks_failed",
            "Tasks of the gateway's own that failed and were begun again; the log has the error.",
            ("task",),
        )

    def per_worker(self, model: str, worker: str) -> PerWorker:
        """Children with their labels resolved, once per pair and not once per request."""
        try:
            return self._per_worker[model, worker]
        except KeyError:
            bound = self._per_worker[model, worker] = PerWorker(self, model, worker)
            for endpoint in self.endpoints:
                bound.expect(endpoint)
            return bound

    def unrouted(self, model: str) -> Ends:
        """Of requests that no worker was given. `model` is the fleet's word; empty where it knows none."""
        ends = self._unrouted.get(model)
        if ends is None:
            ends = self._unrouted[model] = Ends(self, model, "", UNROUTED)
            for endpoint in self.endpoints:
                ends.expect(endpoint)
        return ends

    def expect(self, endpoint: str) -> None:
        """Requests for it come, or may: failures are counted from zero, at every worker."""
        self.endpoints.add(endpoint)
        for ends in (*self._unrouted.values(), *self._per_worker.values()):
            ends.expect(endpoint)

    def forget(self, worker: str) -> None:
        """A worker that left for good takes its series along."""
        for pair in [pair for pair in self._per_worker if pair[1] == worker]:
            del self._per_worker[pair]
        for metric in self._of_workers:
            metric.remove_where("worker", worker)

    def decision(self, model: str, policy: str, reason: str) -> PerDecision:
        key = (model, policy, reason)
        bound = self._decisions.get(key)
        if bound is None:
            for other in get_args(Reason):
                self.decisions.labels(model, policy, other)
            bound = self._decisions[key] = PerDecision(
                self.decisions.labels(*key), self.decision_seconds.labels(model)
            )
        return bound


@dataclass(frozen=True, slots=True)
class PerDecision:
    count: Count
    seconds: Spread


@dataclass(frozen=True, slots=True)
class End:
    """One way to end, of the requests of one (model, worker)."""

    requests: Count
    seconds: Spread


class Ends:
    """How the requests of one (model, worker) ended. No worker: of those that none was given; nor a model:
    where the fleet has none of that name."""

    __slots__ = ("_ends", "_failures", "_metrics", "_model", "_worker")

    def __init__(
        self, metrics: Metrics, model: str, worker: str, failures: Sequence[tuple[str, int]] = FAILURES
    ) -> None:
        self._metrics, self._model, self._worker = metrics, model, worker
        self._failures = failures
        self._ends: dict[tuple[str, str, int], End] = {}

    def expect(self, endpoint: str) -> None:
        """Its failures are counted from zero."""
        for outcome, code in self._failures:
            self._metrics.requests.labels(endpoint, self._model, self._worker, outcome, code)

    def end(self, endpoint: str, outcome: str, code: int) -> End:
        key = (endpoint, outcome, code)
        end = self._ends.get(key)
        if end is None:
            if endpoint not in self._metrics.endpoints:
                self._metrics.expect(endpoint)
            metrics, model, worker = self._metrics, self._model, self._worker
            end = self._ends[key] = End(
                metrics.requests.labels(endpoint, model, worker, outcome, str(code)),
                metrics.request_seconds.labels(model, worker, outcome),
            )
        return end


class PerWorker(Ends):
    """The hot path's children of one (model, worker)."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "inter_token", "matched_tokens", "prompt_tokens",
        "reported_prompt_tokens", "reusable_tokens", "ttft_cold", "ttft_partial", "ttft_warm",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, model: str, worker: str) -> None:
        super().__init__(metrics, model, worker)
        self.prompt_tokens = metrics.prompt_tokens.labels(model, worker)
        self.reusable_tokens = metrics.reusable_tokens.labels(model, worker)
        self.matched_tokens = metrics.matched_tokens.labels(model, worker)
        self.cached_tokens = metrics.cached_tokens.labels(model, worker)
        self.reported_prompt_tokens = metrics.reported_prompt_tokens.labels(model, worker)
        self.completion_tokens = metrics.completion_tokens.labels(model, worker)
        self.inter_token = metrics.inter_token.labels(model, worker)
        self.ttft_cold = metrics.ttft.labels(model, worker, "cold")
        self.ttft_partial = metrics.ttft.labels(model, worker, "partial")
        self.ttft_warm = metrics.ttft.labels(model, worker, "warm")

    def ttft(self, matched_tokens: int, prompt_tokens: int) -> Spread:
        if matched_tokens <= 0:
            return self.ttft_cold
        return self.ttft_warm if matched_tokens >= 0.8 * prompt_tokens else self.ttft_partial


@dataclass(frozen=True, slots=True)
class Gauge:
    """One family as `LiveState` reads it: values by label values."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Iterable[tuple[tuple[str, ...], float]]
    counts: bool = False
    """It only grows: exported as a counter, with `_total` behind its name."""


class LiveState(Collector):
    """Gauges that are read from the live objects at scrape time: a removed worker leaves no stale series."""

    def __init__(self, read: Callable[[], Iterable[Gauge]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not read a fleet that is still being built

    def collect(self) -> Iterable[Metric]:
        for gauge in self._read():
            kind = CounterMetricFamily if gauge.counts else GaugeMetricFamily
            family = kind(gauge.name, gauge.text, labels=gauge.labels)
            yield later(family, partial(_samples, gauge, list(gauge.values)))


def _samples(gauge: Gauge, values: Sequence[tuple[tuple[str, ...], float]]) -> Iterator[Sample]:
    name = f"{gauge.name}_total" if gauge.counts else gauge.name
    for labels, value in values:
        yield Sample(name, dict(zip(gauge.labels, labels, strict=True)), value)
