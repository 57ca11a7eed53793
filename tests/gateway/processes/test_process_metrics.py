"""The metrics of several processes as those of one: right values for every kind, and both text forms."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.api.exposition import SLICE
from gateway.app import build
from gateway.metrics import Gauge, LiveState
from gateway.processes.ended import Ended, workers_in
from gateway.processes.families import Family, Reading, families_of, metrics_of
from gateway.processes.inside import families_in, packed
from gateway.processes.merge import RULES, adds_up, merged
from gateway.settings import Settings


class Registry:
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> object:
        return metrics_of(self._families)


def process(*, requests: dict[str, int], seconds: list[float], trace: str | None = None) -> list[Family]:
    """What one process has: a counter by worker, and a histogram."""
    registry = CollectorRegistry()
    counter = Counter("gateway_requests", "Requests.", ("worker",), registry=registry)
    for worker, count in requests.items():
        counter.labels(worker).inc(count)
    histogram = Histogram("gateway_ttft_seconds", "Wait.", ("worker",), buckets=(0.1, 1.0), registry=registry)
    for value in seconds:
        histogram.labels("a").observe(value, {"trace_id": trace} if trace else None)
    return families_of(registry.collect())


def gauges(**values: float) -> list[Family]:
    return [
        Family(name, "gauge", "x", [Reading(name, {"worker": "a"}, value)]) for name, value in values.items()
    ]


def value(families: list[Family], name: str, **labels: str) -> float:
    (found,) = [
        r.value for f in families for r in f.readings if r.name == name and labels.items() <= r.labels.items()
    ]
    return found


def test_counters_and_histograms_are_sums() -> None:
    families = merged(
        [
            process(requests={"a": 3, "b": 1}, seconds=[0.05, 0.5]),
            process(requests={"b": 4, "c": 2}, seconds=[0.05, 7.0, 0.25]),
        ]
    )
    assert [value(families, "gateway_requests_total", worker=w) for w in "abc"] == [3, 5, 2]
    assert [value(families, "gateway_ttft_seconds_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [
        2,
        4,
        5,
    ]
    assert value(families, "gateway_ttft_seconds_count") == 5
    assert value(families, "gateway_ttft_seconds_sum") == pytest.approx(7.85)


def test_each_family_is_told_once_and_the_text_is_valid() -> None:
    families = merged([process(requests={"a": 1}, seconds=[0.5]), process(requests={"b": 1}, seconds=[0.5])])
    text = generate_latest(Registry(families)).decode()  # type: ignore[arg-type]
    assert text.count("# HELP gateway_requests_total Requests.\n") == 1
    assert text.count("# TYPE gateway_requests_total counter\n") == 1
    assert 'gateway_requests_total{worker="b"} 1.0\n' in text
    # the strict form's own parser takes it: names once, buckets in order, `# EOF` at its end
    strict = openmetrics(Registry(families)).decode()  # type: ignore[arg-type]
    parsed = {family.name: family for family in text_string_to_metric_families(strict)}
    assert parsed.keys() == {"gateway_requests", "gateway_ttft_seconds"}


def test_the_newest_exemplar_stays() -> None:
    old = process(requests={}, seconds=[0.5], trace="old")
    new = process(requests={}, seconds=[0.6], trace="new")
    for order in ([old, new], [new, old]):
        text = openmetrics(Registry(merged(order))).decode()  # type: ignore[arg-type]
        assert 'le="1.0",worker="a"} 2.0 # {trace_id="new"} 0.6 ' in text
        assert "old" not in text


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gateway_waiting_tokens", (100, 40, 2), 142),
        ("gateway_index_blocks", (70, 72, 71), 72),
        ("gateway_ready", (0, 1, 0), 1),
        ("gateway_redis_up", (1, 0, 1), 0),
        ("gateway_mirror_current", (1, 1, 1), 1),
        ("gateway_prefill_rate", (0.5, 1.0, 1.5), 1.0),
        ("gateway_index_writer", (0, 1, 0), 1),
        ("process_start_time_seconds", (30, 10, 20), 10),
        ("gateway_of_a_later_version", (1, 3, 2), 3),
    ],
)
def test_a_gauge_goes_by_what_it_says(name: str, values: tuple[float, ...], expected: float) -> None:
    assert value(merged([gauges(**{name: v}) for v in values]), name) == expected


def test_the_states_of_a_worker_come_from_one_process() -> None:
    def states(**of: float) -> list[Family]:
        readings = [Reading("gateway_worker_state", {"state": s}, v) for s, v in of.items()]
        return [Family("gateway_worker_state", "gauge", "x", readings)]

    families = merged([states(ready=1, unhealthy=0), states(ready=0, unhealthy=1)])
    assert value(families, "gateway_worker_state", state="ready") == 1
    assert value(families, "gateway_worker_state", state="unhealthy") == 0


def test_siblings_are_no_peers_of_the_whole() -> None:
    """Three processes have 5, 2 and 1 in flight, another machine has 4: each sees the others' and those 4."""
    own, outside = (5, 2, 1), 4
    families = merged(
        [
            gauges(gateway_inflight_requests=mine, gateway_peer_inflight_requests=outside + sum(own) - mine)
            for mine in own
        ]
    )
    assert value(families, "gateway_inflight_requests") == 8
    assert value(families, "gateway_peer_inflight_requests") == 4


def test_a_word_that_is_late_makes_nobody_less_than_nothing() -> None:
    families = merged(
        [gauges(gateway_inflight_requests=9, gateway_peer_inflight_requests=0) for _ in range(2)]
    )
    assert value(families, "gateway_peer_inflight_requests") == 0


@pytest.mark.anyio
async def test_families_travel_whole() -> None:
    many = {f"w{number}": number for number in range(3 * SLICE)}
    families = [
        *process(requests=many, seconds=[0.5], trace="t"), *gauges(x=float("inf")),
        Family("nothing", "counter", "Never counted.", []),
    ]  # fmt: skip
    packed_bytes = await packed(Registry(families))  # type: ignore[arg-type]
    assert families_in(packed_bytes) == families
    # a supervisor of another version reads it as well: it is a list of families as msgpack has them
    assert msgspec.msgpack.decode(packed_bytes) == msgspec.msgpack.decode(msgspec.msgpack.encode(families))


@pytest.mark.anyio
async def test_every_gauge_that_there_is_has_its_rule() -> None:
    app = build(
        Settings(workers=("http://127.0.0.1:1",), redis_url="redis://127.0.0.1:1/0", discovery="redis")
    )
    # nothing is entered, so nothing connects; a replica that shares has every family
    families = families_of(app.metrics.registry.collect())
    assert {family.name for family in families if not adds_up(family)} == set(RULES)


def test_what_a_process_had_stays_in_the_sums_after_its_end() -> None:
    ended = Ended(lambda: 0.0)
    living = process(requests={"a": 2}, seconds=[0.5])
    ended.keep([*process(requests={"a": 5, "b": 1}, seconds=[0.5, 0.5]), *gauges(gateway_waiting_tokens=9)])
    ended.keep(process(requests={"a": 10}, seconds=[]))
    families = merged([[*living, *gauges(gateway_waiting_tokens=1)]], ended.families())
    assert value(families, "gateway_requests_total", worker="a") == 17
    assert value(families, "gateway_requests_total", worker="b") == 1
    assert value(families, "gateway_ttft_seconds_count") == 3
    assert value(families, "gateway_waiting_tokens") == 1


def test_series_of_a_worker_that_nobody_knows_are_dropped_in_the_end() -> None:
    now = [0.0]
    ended = Ended(lambda: now[0], kept_s=600.0)
    ended.keep(process(requests={"a": 5, "b": 1}, seconds=[]))
    for at, known in ((0.0, {"a"}), (599.0, {"a"})):
        now[0] = at
        ended.sweep(known)
    assert workers_in(ended.families()) == {"a", "b"}
    now[0] = 600.0
    ended.sweep({"a"})
    assert workers_in(ended.families()) == {"a"}


def test_one_that_came_back_is_not_dropped() -> None:
    now = [0.0]
    ended = Ended(lambda: now[0], kept_s=600.0)
    ended.keep(process(requests={"b": 1}, seconds=[]))
    for at, known in ((0.0, set[str]()), (300.0, {"b"}), (601.0, set[str]())):
        now[0] = at
        ended.sweep(known)
    assert workers_in(ended.families()) == {"b"}


def test_gauges_that_count_are_counters() -> None:
    """Live state is exported as a counter where it only grows: it is summed, and kept after an end."""
    registry = CollectorRegistry()
    registry.register(LiveState(lambda: [Gauge("gateway_lost", "x", (), [((), 3)], counts=True)]))
    families = families_of(registry.collect())
    assert value(merged([families, families], families), "gateway_lost_total") == 9
