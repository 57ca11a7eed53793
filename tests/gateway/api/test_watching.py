"""What the live page and the gauges are made of, by hand-computed figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from gateway.api.departed import Departed
from gateway.api.fleet_view import FleetView
from gateway.api.headers import trace_id
from gateway.api.hot_prefixes import HotPrefixes, Openings
from gateway.api.record import RequestRecord
from gateway.api.recorder import MetricsRecorder
from gateway.api.state_gauges import Bounds, StateGauges
from gateway.api.ui.decisions import KEPT, Decisions
from gateway.api.ui.window import SHARES, STEPS, LiveWindow, Times, share_of
from gateway.fleet.guards import Guards
from gateway.fleet.worker import Worker, WorkerSpec
from gateway.metrics import Gauge, LiveState, Metrics
from gateway.routing.route import Outcome
from gateway.types import BlockKey, Usage, WorkerId


class Now:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def record(
    worker: str | None = "w", *, ttft: float | None = 0.2, matched: int = 0, **more: object
) -> RequestRecord:
    fields = {
        "request_id": "r", "endpoint": "chat", "model": "m", "asked_model": "m",
        "worker": None if worker is None else WorkerId(worker), "status": 200, "outcome": Outcome.OK,
        "streamed": ttft is not None, "prompt_tokens": 100, "matched_tokens": matched, "reusable_tokens": 90,
        "usage": Usage(100, 5, matched), "routing_s": 0.001, "ttft_s": ttft, "gap_mean_s": None,
        "gap_longest_s": 0.0, "pieces": 5, "total_s": 1.0, "tries": (), "stripped": (), "error": "",
    }  # fmt: skip
    return RequestRecord(**{**fields, **more})  # type: ignore[arg-type]


def test_a_window_counts_tokens_and_forgets_them_after_five_minutes() -> None:
    now = Now()
    window = LiveWindow(now)
    window.record(record(matched=80))
    window.record(record(matched=0, worker="v"))
    window.record(record(worker=None, status=503, ttft=None, usage=None))
    recent = window.recent()
    assert (recent.requests, recent.failed) == (3, 1)
    assert (recent.prompt, recent.reusable, recent.promised, recent.cached) == (200, 180, 80, 80)
    assert {share: times.count for share, times in recent.ttft.items()} == {"warm": 1, "cold": 1}
    assert recent.workers["w"].cached == 80
    now.time += 301
    assert window.recent().requests == 0
    series = window.series()
    assert len(series) == STEPS
    assert sum(step.requests for step in series) == 3


def test_what_each_worker_answered_follows_the_last_five_minutes_at_every_look() -> None:
    now = Now()
    window = LiveWindow(now)

    def answered() -> dict[str, tuple[int, int]]:
        return {worker: (c.requests, c.cached) for worker, c in window.recent().workers.items()}

    window.record(record("a", matched=80))
    assert answered() == {"a": (1, 80)}
    window.record(record("a", matched=60))  # in the step that was looked at already
    assert answered() == answered() == {"a": (2, 140)}
    now.time += 100
    window.record(record("a", matched=10))
    window.record(record("b"))
    assert answered() == {"a": (3, 150), "b": (1, 0)}
    now.time += 195  # 295 s after the first two
    assert answered() == {"a": (3, 150), "b": (1, 0)}
    now.time += 5
    assert answered() == {"a": (1, 10), "b": (1, 0)}
    now.time += 50
    window.record(record("b", matched=5))
    now.time += 50  # 300 s after the third and fourth
    assert answered() == {"b": (1, 5)}
    now.time += 1000
    assert answered() == {}


def test_shares_are_those_of_the_metric() -> None:
    shares = [share_of(matched, 1000) for matched in (0, 1, 799, 800, 1000)]
    assert shares == ["cold", "partial", "partial", "warm", "warm"]
    assert set(shares) == set(SHARES)


def test_quantiles_are_within_six_percent() -> None:
    times = Times()
    for millisecond in range(1, 1001):
        times.add(millisecond / 1000)
    assert times.quantile(0.5) == pytest.approx(0.5, rel=0.07)
    assert times.quantile(0.95) == pytest.approx(0.95, rel=0.07)
    assert Times().quantile(0.5) is None


def test_decisions_are_bounded_and_numbered_on() -> None:
    decisions = Decisions(Now())
    for _ in range(KEPT + 7):
        decisions.record(record())
    assert [row["number"] for row in decisions.since(KEPT + 4)] == [KEPT + 5, KEPT + 6, KEPT + 7]
    assert len(decisions.since(0)) == KEPT
    assert decisions.explain(7) is None
    assert decisions.explain(8) is not None


def test_shares_of_the_hottest_openings() -> None:
    openings = Openings(most=3)
    for key in [1] * 60 + [2] * 30 + [3] * 10:
        openings.see(BlockKey(key))
    assert openings.share(1) == pytest.approx(0.6)
    assert openings.share(10) == 1.0
    openings.see(BlockKey(4))  # one too many: 30, what two of the four have at most, is taken from all
    assert openings.counts == {BlockKey(1): 30}


def test_openings_fade() -> None:
    openings = Openings(halve_every=10)
    for _ in range(10):
        openings.see(BlockKey(1))
    assert (openings.total, openings.counts) == (5, {BlockKey(1): 5})


@pytest.mark.parametrize(
    ("outcome", "pieces", "usage", "counted"),
    [
        (Outcome.OK, 5, Usage(100, 5, 80), 100),
        (Outcome.OK, 0, None, 100),
        (Outcome.CANCELLED, 3, None, 100),  # it had begun to answer
        (Outcome.CANCELLED, 0, None, 0),
        (Outcome.CLIENT_ERROR, 0, None, 0),
        (Outcome.BUSY, 0, None, 0),
        (Outcome.UPSTREAM_ERROR, 0, None, 0),
        (Outcome.UPSTREAM_ERROR, 3, None, 100),
    ],
)
def test_tokens_of_requests_without_a_prefill_are_not_counted(
    outcome: Outcome, pieces: int, usage: Usage | None, counted: int
) -> None:
    metrics, hot = Metrics(), HotPrefixes()
    one = record(matched=80, outcome=outcome, pieces=pieces, usage=usage, keys=((BlockKey(1),),))
    for recorder in (MetricsRecorder(metrics), hot):
        recorder.record(one)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model": "m", "worker": "w"})

    assert (value("gateway_prompt_tokens_total") or 0) == counted
    assert (value("gateway_reusable_tokens_total") or 0) == counted * 0.9
    assert (value("gateway_matched_tokens_total") or 0) == counted * 0.8
    [gauge] = hot.gauges()
    assert len(list(gauge.values)) == (2 if counted else 0)


def test_series_of_a_worker_that_left_are_dropped_after_their_time_and_not_before() -> None:
    now, metrics = Now(), Metrics()
    recorder = MetricsRecorder(metrics)
    for worker in ("stays", "goes"):
        recorder.record(record(worker))
        metrics.event_gaps.labels(worker).inc()
    busy = {"goes"}
    departed = Departed(metrics.forget, busy.__contains__, now, kept_s=600)
    departed.removed(Worker(WorkerSpec("goes")))
    now.time += 599
    departed.sweep()
    assert b'worker="goes"' in generate_latest(metrics.registry)
    now.time += 1
    departed.sweep()
    assert b'worker="goes"' in generate_latest(metrics.registry), "the record of its last answer is to come"
    recorder.record(record("goes"))
    busy.clear()
    departed.sweep()
    text = generate_latest(metrics.registry)
    assert b'worker="goes"' not in text
    assert b'worker="stays"' in text


def test_one_that_comes_back_in_time_keeps_its_series() -> None:
    now, metrics = Now(), Metrics()
    MetricsRecorder(metrics).record(record("w"))
    departed = Departed(metrics.forget, lambda worker: False, now, kept_s=600)
    departed.removed(Worker(WorkerSpec("w")))
    departed.added(Worker(WorkerSpec("w")))
    now.time += 1000
    departed.sweep()
    assert b'worker="w"' in generate_latest(metrics.registry)


def test_a_request_that_no_worker_was_given_leaves_no_series_of_tokens() -> None:
    metrics = Metrics()
    MetricsRecorder(metrics).record(record(worker=None, status=404, outcome=Outcome.CLIENT_ERROR))
    samples = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.value or sample.name != "gateway_requests_total"
    }
    assert samples["gateway_requests_total"] == 1
    assert samples["gateway_request_seconds_count"] == 1
    assert not [name for name in samples if name.endswith("tokens_total") or "ttft" in name]


def test_a_request_that_no_worker_was_given_counts_for_its_model_where_there_is_one() -> None:
    metrics, known = Metrics(), {"m": "m", "m:sql": "m"}
    recorder = MetricsRecorder(metrics, lambda name: known.get(name, ""))
    for asked in ("m", "m:sql", "invented", "another", ""):
        recorder.record(record(worker=None, asked_model=asked, status=503, outcome=Outcome.UPSTREAM_ERROR))
    counted = {
        (sample.labels["model"], sample.labels["worker"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "gateway_requests_total" and sample.value
    }
    assert counted == {("m", ""): 2, ("", ""): 3}


def test_a_sampled_trace_is_an_exemplar() -> None:
    metrics = Metrics()
    MetricsRecorder(metrics).record(record(trace_id="4bf92f3577b34da6a3ce929d0e0e4736"))
    lines = openmetrics(metrics.registry).decode().splitlines()
    (line,) = [x for x in lines if x.startswith("gateway_ttft_seconds_bucket") and "# {" in x]
    assert '# {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.2' in line


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", ""),  # not sampled
        (b"00-00000000000000000000000000000000-00f067aa0ba902b7-01", ""),  # no trace
        (b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", ""),  # upper case is not allowed
        (b"nonsense", ""),
    ],
)
def test_trace_ids_are_those_of_w3c_trace_context(header: bytes, expected: str) -> None:
    assert trace_id([(b"traceparent", header)]) == expected


def test_a_live_count_is_exported_as_a_counter() -> None:
    registry = CollectorRegistry()
    registry.register(LiveState(lambda: [Gauge("x_blocks", "Blocks.", (), [((), 3)], counts=True)]))
    assert b"# TYPE x_blocks_total counter\nx_blocks_total 3.0" in generate_latest(registry)


def test_a_worker_that_leaves_while_gauges_are_read_does_not_come_back() -> None:
    guards, left = Guards(), WorkerId("w")
    guards.of(left)
    one = SimpleNamespace(
        id="w", model="m", state="ready", events=None, load=SimpleNamespace(max_requests=None)
    )
    view = cast(FleetView, SimpleNamespace(workers=lambda: [one]))
    bounds = Bounds(index_blocks=10, queue_requests=10)
    read = StateGauges(view, guards, bounds, version="1", readiness=lambda: None, clock=Now())
    gauges = iter(read())
    next(gauges)
    guards.forget(left)
    named = {gauge.name: list(gauge.values) for gauge in gauges}
    assert named["gateway_breaker_open"] == [(("m", "w"), 0.0)]
    assert left not in guards._guards
