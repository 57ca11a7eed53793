"""From what happened to what is exported: metrics and the access log, outside of the logic they watch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gateway.api.record import Recorder, RequestRecord
from gateway.meters import Count
from gateway.metrics import Ends, Metrics
from gateway.types import WorkerId

log = logging.getLogger(__name__)
access = logging.getLogger("gateway.access")


class MetricsRecorder:
    """One call a request."""

    def __init__(self, metrics: Metrics, base_of: Callable[[str], str] = lambda name: "") -> None:
        """`base_of` gives a name's base model where the fleet serves it or did; otherwise nothing."""
        self._metrics = metrics
        self._base_of = base_of

    def record(self, record: RequestRecord) -> None:
        worker, metrics = record.worker, self._metrics
        bound = None if worker is None else metrics.per_worker(record.model, worker)
        exemplar = {"trace_id": record.trace_id} if record.trace_id else None
        # `.value` would be two calls
        end = (bound or self._unrouted(record)).end(record.endpoint, record.outcome._value_, record.status)
        end.requests.value += 1
        end.seconds.observe(record.total_s, exemplar)
        for name in record.stripped:
            metrics.door_stripped.labels(name).inc()
        for one in record.tries[:-1]:
            metrics.retries.labels(one.worker, one.outcome.value).inc()
        if bound is None:
            return
        if record.slices:
            metrics.sliced.labels(record.model, worker).inc()
            metrics.slices.labels(record.model, worker).inc(record.slices)
        if record.ttft_s is not None:
            bound.ttft(record.matched_tokens, record.prompt_tokens).observe(record.ttft_s, exemplar)
        if record.gap_mean_s is not None:
            bound.inter_token.observe(record.gap_mean_s)
        if record.prompt_tokens and record.prefilled:
            # our own counts, never below zero
            bound.prompt_tokens.value += record.prompt_tokens
            bound.reusable_tokens.value += record.reusable_tokens
            bound.matched_tokens.value += record.matched_tokens
        usage = record.usage
        if usage is not None:
            bound.completion_tokens.inc(usage.completion_tokens)
            if usage.cached_tokens is not None:
                bound.cached_tokens.inc(usage.cached_tokens)
                bound.reported_prompt_tokens.inc(usage.prompt_tokens)

    def _unrouted(self, record: RequestRecord) -> Ends:
        # a name that the fleet does not know is a client's invention: it must not become a series
        asked = record.asked_model
        return self._metrics.unrouted(self._base_of(asked) if asked else "")


class FilledBlocks:
    """Tells the followers which engines must have filled new blocks: their events are due."""

    def __init__(
        self, answered: Callable[[WorkerId, int, float], None], block_size: Callable[[str], int]
    ) -> None:
        """`block_size` gives tokens per block by model."""
        self._answered = answered
        self._block_size = block_size

    def record(self, record: RequestRecord) -> None:
        usage = record.usage
        if record.worker is None or usage is None or usage.cached_tokens is None:
            return
        # the last generated token has no K/V yet
        computed = usage.prompt_tokens + max(0, usage.completion_tokens - 1)
        size = self._block_size(record.model)
        self._answered(record.worker, computed // size - usage.cached_tokens // size, record.total_s)


class Recorders:
    """Several, in order."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def record(self, record: RequestRecord) -> None:
        for recorder in self._recorders:
            recorder.record(record)


class AccessLog:
    """One line a request. Never a prompt, never a credential."""

    def record(self, record: RequestRecord) -> None:
        usage = record.usage
        access.info(
            "%s %s %d",
            record.endpoint,
            record.outcome.value,
            record.status,
            extra={
                "fields": {
                    "request_id": record.request_id,
                    "key": record.key or None,
                    "trace_id": record.trace_id or None,
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
                    "slices": record.slices,
                    "error": record.error or None,
                }
            },
        )


class MetricsObserver:
    """What routing tells (gateway.routing.observer.RoutingObserver), as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._agreed: dict[str, Count] = {}
        """By model, the answers whose token count was ours."""

    def decided(self, model: str, policy: str, reason: str, seconds: float) -> None:
        bound = self._metrics.decision(model, policy, reason)
        bound.count.value += 1
        bound.seconds.observe(seconds)

    def refused(self, model: str, error: str) -> None:
        self._metrics.refusals.labels(error).inc()

    def delivered(self, worker: WorkerId, promised: int, cached: int) -> None:
        if promised == cached:
            return
        direction = "short" if cached < promised else "extra"
        self._metrics.promise_drift_tokens.labels(worker, direction).inc(abs(promised - cached))

    def parity(self, model: str, own: int, reported: int) -> None:
        agreed = self._agreed.get(model)
        if agreed is None:
            self._metrics.tokenizer_checks.labels(model, "mismatch")
            agreed = self._agreed[model] = self._metrics.tokenizer_checks.labels(model, "match")
        if own == reported:
            agreed.value += 1
        else:
            self._metrics.tokenizer_checks.labels(model, "mismatch").inc()

    def degraded(self, worker: WorkerId, degraded: bool) -> None:
        # the gauge reads the drift itself; here a person is told when it turns
        log.warning("promises fail" if degraded else "promises come true again", extra={"worker": worker})

    def shadowed(self, model: str, policy: str, agrees: bool, gain_tokens: float) -> None:
        metrics = self._metrics
        yes, no = (metrics.shadow.labels(model, policy, word) for word in ("true", "false"))
        (yes if agrees else no).inc()
        gain, loss = (metric.labels(model, policy) for metric in (metrics.shadow_gain, metrics.shadow_loss))
        (gain if gain_tokens >= 0 else loss).inc(abs(gain_tokens))


class GateMetrics:
    """What the gate tells (gateway.api.gate.GateObserver), as metrics. Keys are known by their ids."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def known(self, keys: Iterable[str]) -> None:
        """Each counts from zero."""
        metrics = self._metrics
        for key in keys:
            for counter in (metrics.key_requests, metrics.key_tokens, metrics.key_limited):
                counter.labels(key)

    def unauthorized(self) -> None:
        self._metrics.unauthorized.inc()

    def limited(self, key: str) -> None:
        self._metrics.key_limited.labels(key).inc()

    def ended(self, key: str, tokens: int) -> None:
        self._metrics.key_requests.labels(key).inc()
        self._metrics.key_tokens.labels(key).inc(tokens)


class LastingMetrics:
    """What becomes of lasting tasks (gateway.lasting.LastingObserver), as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._failed = metrics.tasks_failed

    def begun(self, kind: str) -> None:
        self._failed.labels(kind)  # from zero, so that the first failure is an increase

    def failed(self, kind: str) -> None:
        self._failed.labels(kind).inc()


class EventMetrics:
    """What followers tell (gateway.events.ports.Observer), as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def followed(self, worker: WorkerId) -> None:
        """Zeros of what may never happen: a rate or an alert needs a sample before the first."""
        metrics = self._metrics
        for counter in (
            metrics.event_batches, metrics.event_blocks,
            metrics.event_gaps, metrics.event_replays_failed, metrics.events_malformed,
        ):  # fmt: skip
            counter.labels(worker)
        for reason in ("restarted", "lost"):
            metrics.event_epochs.labels(worker, reason)

    def connected(self, worker: WorkerId, up: bool) -> None:
        log.info("events connected" if up else "events disconnected", extra={"worker": worker})

    def batch(self, worker: WorkerId, blocks: int, lag: float | None) -> None:
        self._metrics.event_batches.labels(worker).inc()
        self._metrics.event_blocks.labels(worker).inc(blocks)
        if lag is not None:
            self._metrics.event_lag.labels(worker).observe(max(0.0, lag))

    def malformed(self, worker: WorkerId, events: int) -> None:
        self._metrics.events_malformed.labels(worker).inc(events)

    def gap(self, worker: WorkerId, batches: int) -> None:
        self._metrics.event_gaps.labels(worker).inc()
        log.warning(
            "event batches are missing; asking for a replay", extra={"worker": worker, "batches": batches}
        )

    def replay_failed(self, worker: WorkerId) -> None:
        self._metrics.event_replays_failed.labels(worker).inc()

    def epoch(self, worker: WorkerId, reason: str) -> None:
        self._metrics.event_epochs.labels(worker, reason).inc()
        log.warning("a worker's cache history starts over", extra={"worker": worker, "reason": reason})
