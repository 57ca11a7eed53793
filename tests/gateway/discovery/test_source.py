"""What metrics say of a source of workers."""

from __future__ import annotations

from gateway.fleet.source import Source


def figures(source: Source) -> dict[str, float]:
    """By name, without the common beginning; labels behind the source's in brackets."""
    return {
        gauge.name.removeprefix("gateway_discovery_") + "".join(f"[{label}]" for label in labels[1:]): value
        for gauge in source.gauges()
        for labels, value in gauge.values
    }


def test_age_runs_from_the_last_word_and_from_the_start_before_it() -> None:
    now = [100.0]
    source = Source("dns", lambda: now[0], joined=lambda: 3, unusable=lambda: 1)
    now[0] = 107.0
    assert figures(source) == {
        "up": 0, "age_seconds": 7, "workers": 3, "unusable": 1, "lists": 0, "watches": 0,
        "failures[expired]": 0, "failures[failed]": 0,
    }  # fmt: skip
    source.listed()
    source.watched()
    now[0] = 150.0
    assert (figures(source)["up"], figures(source)["age_seconds"]) == (1, 43)
    source.failed("away")
    source.failed("history is gone", expired=True)
    source.failed("away")
    after = figures(source)
    assert (after["up"], after["age_seconds"], source.fault) == (0, 43, "away")
    assert (after["failures[failed]"], after["failures[expired]"]) == (2, 1)
    source.heard()
    after = figures(source)
    assert (after["up"], after["age_seconds"], after["lists"], after["watches"]) == (1, 0, 1, 1)
