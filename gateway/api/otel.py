"""Spans for an OpenTelemetry collector (OTLP over HTTP). Needs the extra `otel`.

Attribute names are those of the semantic conventions for HTTP and for generative AI; what has no name there
begins with ``gateway.``. Never a prompt, never a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.api.record import RequestRecord
from gateway.api.tracing import Trace
from gateway.upstream.headers import Headers

_EXPORT_SECONDS = 5
_CONTEXT = (b"traceparent", b"tracestate")


class OtelTracer:
    def __init__(self, endpoint: str, *, ratio: float, version: str, now_ns: Callable[[], int]) -> None:
        """`endpoint` is the collector's URL for traces; `ratio` of the requests that bring no decision of
        their own is sampled; `now_ns` gives nanoseconds since 1970."""
        resource = Resource.create({"service.name": "prefix-gateway", "service.version": version})
        self._provider = TracerProvider(
            resource=resource, sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS))
        )
        self._tracer = self._provider.get_tracer("gateway", version)
        self._propagator = TraceContextTextMapPropagator()
        self._now_ns = now_ns

    def begin(self, headers: Headers, name: str) -> Trace:
        carrier = {key.decode(): value.decode("latin-1") for key, value in headers if key in _CONTEXT}
        began = self._now_ns()
        span = self._tracer.start_span(
            f"POST {name}", self._propagator.extract(carrier), SpanKind.SERVER, start_time=began
        )
        onward: dict[str, str] = {}
        self._propagator.inject(onward, set_span_in_context(span))
        return _OtelTrace(span, began, onward)

    async def close(self) -> None:
        """Sends what is left; waits for it no longer than an export may take."""
        await asyncio.to_thread(self._provider.shutdown)


class _OtelTrace:
    def __init__(self, span: Span, began: int, onward: Mapping[str, str]) -> None:
        self.headers: Headers = [(k.encode(), v.encode("latin-1")) for k, v in onward.items()]
        self._span = span
        self._began = began

    def end(self, record: RequestRecord) -> None:
        span, began = self._span, self._began
        if span.is_recording():
            span.set_attributes(_attributes(record))
            for one in record.tries:
                span.add_event(
                    "try", {"gateway.worker": one.worker, "gateway.outcome": one.outcome.value}, began
                )
            if record.ttft_s is not None:
                span.add_event("first token", {}, began + int(record.ttft_s * 1e9))
            if record.status >= 500:
                span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(began + int(record.total_s * 1e9))


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    found: dict[str, str | int | float | None] = {
        "http.route": record.endpoint,
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model or None,
        "gateway.request_id": record.request_id,
        "gateway.key": record.key or None,
        "gateway.worker": record.worker,
        "gateway.outcome": record.outcome.value,
        "gateway.prompt_tokens": record.prompt_tokens,
        "gateway.matched_tokens": record.matched_tokens,
        "gateway.reusable_tokens": record.reusable_tokens,
        "gateway.routing_seconds": record.routing_s,
    }
    if record.usage is not None:
        found["gen_ai.usage.input_tokens"] = record.usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = record.usage.completion_tokens
        found["gateway.cached_tokens"] = record.usage.cached_tokens
    return {name: value for name, value in found.items() if value is not None}
