"""From what happened to what is exported: metrics and the access log, outside of the logic they watch."""

from __future__ import annotations

import logging

from gateway.api.record import RequestRecord
from gateway.metrics import Metrics
from gateway.types import WorkerId

access = logging.getLogger("gateway.access")


class MetricsRecorder:
    """The hot path's recorder: one call a request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def record(self, record: RequestRecord) -> None:
        # a name that no worker serves is a client's invention: it must not become a series
        model = record.model if record.worker is not None else ""
        bound = self._metrics.per_worker(model, record.worker or "")
        outcome = record.outcome.value
        bound.requests(record.endpoint, outcome, record.status).inc()
        bound.request_seconds(outcome).observe(record.total_s)
        for name in record.stripped:
            self._metrics.door_stripped.labels(name).inc()
        for one in record.tries[:-1]:
            self._metrics.retries.labels(one.worker, one.outcome.value).inc()
        if record.worker is None:
            return
        if record.ttft_s is not None:
            bound.ttft(record.matched_tokens, record.prompt_tokens).observe(record.ttft_s)
        if record.gap_mean_s is not None:
            bound.inter_token.observe(record.gap_mean_s)
        if record.prompt_tokens:
            bound.prompt_tokens.inc(record.prompt_tokens)
            bound.reusable_tokens.inc(record.reusable_tokens)
            bound.matched_tokens.inc(record.matched_tokens)
        usage = record.usage
        if usage is not None:
            bound.completion_tokens.inc(usage.completion_tokens)
            if usage.cached_tokens is not None:
                bound.cached_tokens.inc(usage.cached_tokens)
                bound.reported_prompt_tokens.inc(usage.prompt_tokens)


class AccessLog:
    """One line a request, and the next recorder after it. Never a prompt, never a credential."""

    def __init__(self, after: MetricsRecorder) -> None:
        self._after = after

    def record(self, record: RequestRecord) -> None:
        self._after.record(record)
        usage = record.usage
        access.info(
            "%s %s %d",
            record.endpoint,
            record.outcome.value,
            record.status,
            extra={
                "request_id": record.request_id,
                "endpoint": record.endpoint,
                "model": record.model,
                "worker": record.worker,
                "status": record.status,
                "outcome": record.outcome.value,
                "prompt_tokens": record.prompt_tokens,
                "matched_tokens": record.matched_tokens,
                "reusable_tokens": record.reusable_tokens,
                "cached_tokens": None if usage is None else usage.cached_tokens,
                "completion_tokens": None if usage is None else usage.completion_tokens,
                "routing_s": record.routing_s,
                "ttft_s": record.ttft_s,
                "total_s": record.total_s,
                "tries": len(record.tries),
                "error": record.error or None,
            },
        )


class MetricsObserver:
    """What routing tells (gateway.routing.observer.RoutingObserver), as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._degraded: set[WorkerId] = set()

    @property
    def degraded_workers(self) -> frozenset[WorkerId]:
        return frozenset(self._degraded)

    def decided(self, model: str, policy: str, reason: str, seconds: float) -> None:
        bound = self._metrics.decision(model, policy, reason)
        bound.count.inc()
        bound.seconds.observe(seconds)

    def refused(self, model: str, error: str) -> None:
        self._metrics.refusals.labels(error).inc()

    def delivered(self, worker: WorkerId, promised: int, cached: int) -> None:
        if promised == cached:
            return
        direction = "short" if cached < promised else "extra"
        self._metrics.promise_drift_tokens.labels(worker, direction).inc(abs(promised - cached))

    def parity(self, model: str, own: int, reported: int) -> None:
        self._metrics.tokenizer_checks.labels(model, "match" if own == reported else "mismatch").inc()

    def degraded(self, worker: WorkerId, degraded: bool) -> None:
        (self._degraded.add if degraded else self._degraded.discard)(worker)

    def shadowed(self, model: str, policy: str, agrees: bool, gain_tokens: float) -> None:
        self._metrics.shadow.labels(model, policy, "true" if agrees else "false").inc()
        self._metrics.shadow_gain.labels(model, policy).inc(max(0.0, gain_tokens))
