"""Trace context from client to worker, and spans at a collector that reads what it gets."""

from __future__ import annotations

import asyncio
from random import Random
from time import perf_counter, time_ns
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.api.openai import PublicApp
from gateway.api.otel import OtelTracer
from gateway.api.serve import ProxyService
from gateway.prompt.reader import read_prompt
from gateway.upstream.client import UpstreamClient
from tests.faults import FaultyEngine, answers
from tests.gateway.api.rig import QUICK, InOrderRouter, Records, http, running

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
ANSWER = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}'


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        export = ExportTraceServiceRequest.FromString(body)
        self.spans += [s for r in export.resource_spans for scoped in r.scope_spans for s in scoped.spans]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


async def ask(tracer: OtelTracer | None, engine: FaultyEngine, headers: dict[str, str]) -> None:
    client = UpstreamClient()
    service = ProxyService(
        InOrderRouter([engine.url]), client, Records(), read_prompt,
        options=QUICK, clock=perf_counter, rng=Random(1), tracer=tracer,
    )  # fmt: skip
    app = PublicApp(service, models=lambda: [], readiness=lambda: None)
    async with running(app) as port, http() as user:
        body = {"model": "m", "messages": [{"role": "user", "content": "a secret"}]}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert (await user.post(url, json=body, headers=headers)).status_code == 200
    await client.close()


async def test_without_a_collector_the_clients_context_is_passed_on_as_it_is() -> None:
    async with FaultyEngine(answers(ANSWER)) as engine:
        await ask(None, engine, {"traceparent": PARENT, "tracestate": "vendor=1"})
        await ask(None, engine, {})
    first, second = engine.seen
    assert (first.header("traceparent"), first.header("tracestate")) == ([PARENT], ["vendor=1"])
    assert (second.header("traceparent"), second.header("tracestate")) == ([], [])


async def test_a_request_is_a_span_between_the_clients_and_the_workers() -> None:
    collector = Collector()
    async with FaultyEngine(answers(ANSWER)) as engine, running(collector) as port:
        url = f"http://127.0.0.1:{port}/v1/traces"
        tracer = OtelTracer(url, ratio=0.0, version="1", now_ns=time_ns)
        await ask(tracer, engine, {"traceparent": PARENT, "tracestate": "vendor=1"})
        await ask(tracer, engine, {})  # of those without a decision, the ratio takes none
        await ask(tracer, engine, {"traceparent": PARENT[:-1] + "0"})  # the client does not want it
        await tracer.close()
    (span,) = collector.spans
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert engine.seen[0].header("traceparent") == [f"00-{TRACE}-{span.span_id.hex()}-01"]
    assert engine.seen[0].header("tracestate") == ["vendor=1"]
    assert engine.seen[2].header("traceparent")[0].startswith(f"00-{TRACE}-")
    assert engine.seen[2].header("traceparent")[0].endswith("-00")
    assert span.name == "POST /v1/chat/completions"
    found = attributes(span)
    assert {
        name: found[name]
        for name in (
            "http.route", "http.response.status_code", "gen_ai.request.model", "gateway.worker",
            "gateway.outcome", "gateway.prompt_tokens", "gateway.matched_tokens",
            "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
        )
    } == {
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.request.model": "m",
        "gateway.worker": "w0",
        "gateway.outcome": "ok",
        "gateway.prompt_tokens": 100,
        "gateway.matched_tokens": 48,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }  # fmt: skip
    assert [event.name for event in span.events] == ["try"]
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert b"a secret" not in span.SerializeToString()


async def test_a_collector_that_is_away_costs_requests_nothing() -> None:
    async with FaultyEngine(answers(ANSWER)) as engine:
        tracer = OtelTracer("http://127.0.0.1:9/v1/traces", ratio=1.0, version="1", now_ns=time_ns)
        await ask(tracer, engine, {})
        closing = asyncio.create_task(tracer.close())
        await asyncio.wait_for(closing, 60)
    assert len(engine.seen[0].header("traceparent")) == 1
