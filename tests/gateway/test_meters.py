"""Our counters and histograms against prometheus_client's own: the same page, sample for sample."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from gateway.meters import Counter, Histogram

BOUNDS = (0.1, 1.0, 10.0)


@pytest.fixture(autouse=True)
def no_created_series():
    prometheus_client.disable_created_metrics()
    yield
    prometheus_client.enable_created_metrics()


def both(make_ours, make_theirs, use):
    pages = []
    for make in (make_ours, make_theirs):
        registry = CollectorRegistry()
        use(make(registry))
        pages.append(generate_latest(registry).decode())
    return pages


def ours(made):
    def make(registry):
        registry.register(made)
        return made

    return make


def test_a_counter_is_exported_as_prometheus_client_would() -> None:
    def use(counter):
        counter.labels("a", "ok").inc()
        counter.labels("a", "ok").inc(2.5)
        counter.labels('b"\\\n', "ok").inc(4)

    mine, theirs = both(
        ours(Counter("things", "How many.", ("who", "how"))),
        lambda registry: prometheus_client.Counter("things", "How many.", ("who", "how"), registry=registry),
        use,
    )
    assert mine == theirs
    assert 'things_total{how="ok",who="a"} 3.5' in mine or 'things_total{who="a",how="ok"} 3.5' in mine


def test_a_counter_without_labels_is_there_before_it_counts() -> None:
    mine, theirs = both(
        ours(Counter("things", "How many.", ())),
        lambda registry: prometheus_client.Counter("things", "How many.", registry=registry),
        lambda counter: None,
    )
    assert mine == theirs
    assert "things_total 0.0" in mine


def test_a_histogram_is_exported_as_prometheus_client_would() -> None:
    def use(histogram):
        # one below, one on a bound (it belongs to that bucket), one between, one above all
        for value in (0.05, 1.0, 3.0, 30.0):
            histogram.labels("x").observe(value)

    mine, theirs = both(
        ours(Histogram("seconds", "How long.", ("what",), BOUNDS)),
        lambda registry: prometheus_client.Histogram(
            "seconds", "How long.", ("what",), buckets=BOUNDS, registry=registry
        ),
        use,
    )
    assert mine == theirs
    assert 'seconds_bucket{le="1.0",what="x"} 2.0' in mine


def test_the_last_exemplar_of_a_bucket_is_shown() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "How long.", (), BOUNDS)
    registry.register(histogram)
    histogram.observe(0.5, {"trace_id": "aa"})
    histogram.observe(0.7, {"trace_id": "bb"})
    histogram.observe(5.0)
    page = openmetrics(registry).decode()
    assert 'seconds_bucket{le="1.0"} 2.0 # {trace_id="bb"} 0.7' in page
    assert 'seconds_bucket{le="10.0"} 3.0\n' in page


def test_an_exemplar_that_openmetrics_has_no_room_for_is_left_out() -> None:
    histogram = Histogram("seconds", "How long.", (), BOUNDS)
    histogram.observe(0.5, {"trace_id": "a" * 200})
    assert histogram.labels().counts == [0, 1, 0, 0]
    assert histogram.labels().exemplars == {}


def test_series_of_a_label_value_can_be_removed() -> None:
    counter = Counter("things", "How many.", ("worker", "how"))
    for worker in ("a", "b"):
        counter.labels(worker, "ok").inc()
    counter.remove_where("worker", "a")
    (family,) = counter.collect()
    assert [sample.labels for sample in family.samples] == [{"worker": "b", "how": "ok"}]


def test_wrong_use_is_refused() -> None:
    counter = Counter("things", "How many.", ("who",))
    with pytest.raises(ValueError, match="labels"):
        counter.labels("a", "b")
    with pytest.raises(ValueError, match="only grow"):
        counter.labels("a").inc(-1)
