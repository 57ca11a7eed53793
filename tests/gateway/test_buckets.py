"""Histograms are fine where people read them: what a board draws is close to what was."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gateway import metrics
from gateway.diagnosis.series import Scrape, Series, parse
from gateway.metrics import Metrics
from grafana.boards import BOARDS
from grafana.expand import expand

ROOT = Path(__file__).resolve().parents[2]


def steps(bounds: tuple[float, ...], low: float, high: float) -> list[float]:
    return [b / a for a, b in pairwise(bounds) if low <= a and b <= high]


@pytest.mark.parametrize(
    ("bounds", "low", "high", "step"),
    [
        (metrics.TTFT_SECONDS, 0.005, 60, 1.51),
        (metrics.TTFT_SECONDS, 0.1, 2.5, 1.29),
        (metrics.SECONDS, 0.1, 180, 1.67),
        (metrics.GAP_SECONDS, 0.01, 0.1, 1.29),
        (metrics.LAG_SECONDS, 0.001, 0.01, 1.67),
        (metrics.REDIS_SECONDS, 0.0001, 0.015, 1.67),
        (metrics.DECISION_SECONDS, 0.00005, 0.025, 1.67),
    ],
)
def test_bounds_are_close_where_it_matters(
    bounds: tuple[float, ...], low: float, high: float, step: float
) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert {low, high} <= set(bounds)
    assert max(steps(bounds, low, high)) <= step


@pytest.mark.parametrize(("seconds", "drawn"), [(0.531, 0.57), (0.295, 0.285), (4.75, 4.25)])
def test_a_median_is_drawn_near_where_it_is(seconds: float, drawn: float) -> None:
    """Of answers that all took so long: in the middle of their bucket."""
    exported = Metrics()
    for _ in range(100):
        exported.per_worker("m", "w").ttft_cold.observe(seconds)
    text = generate_latest(exported.registry).decode()
    median = Series([Scrape(0.0), parse(text, 10.0, ("gateway_ttft",))]).quantile("gateway_ttft_seconds", 0.5)
    assert median == pytest.approx(drawn)


def test_what_rules_and_boards_compare_with_is_a_bound() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    boards = "\n".join(
        expand(query.expr) for board in BOARDS for panel in board.panels() for query in panel.queries
    )
    asked = set(re.findall(r'gateway_ttft_seconds_bucket\{[^}]*le="([^"]+)"', rules + boards))
    assert asked == {"2.5"}
    assert {0.5, 0.8, 1.0, 1.6, 2.5, 5.0} <= set(metrics.TTFT_SECONDS)
