"""docs/metrics.md names every metric that there is, with its type and labels, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.app import build
from gateway.metrics import LiveState
from gateway.processes.crew import Crew
from gateway.processes.scrape import supervisor_gauges
from gateway.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(gateway_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \| ([^|]+) \|")


@pytest.mark.anyio
async def test_the_page_and_the_exporter_agree() -> None:
    # nothing is entered, so nothing connects; a replica that shares has every family
    app = build(
        Settings(workers=("http://127.0.0.1:1",), redis_url="redis://127.0.0.1:1/0", discovery="redis")
    )
    # and several processes have a few that are their supervisor's
    supervised = CollectorRegistry()
    supervised.register(LiveState(lambda: supervisor_gauges(Crew(lambda: 0.0), wanted=1, crashes=0)))
    exported = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.documentation)
        for registry in (app.metrics.registry, supervised)
        for family in registry.collect()
        if family.name.startswith("gateway_")
    }
    rows = [row.groups() for row in map(ROW.match, PAGE.read_text().splitlines()) if row]
    documented = {name: (kind, meaning) for name, kind, _, meaning, _ in rows}
    assert documented == exported
    assert all(act.strip() for *_, act in rows)


def test_names_follow_the_conventions() -> None:
    for name, kind, *_ in (row.groups() for row in map(ROW.match, PAGE.read_text().splitlines()) if row):
        assert name.endswith("_total") == (kind == "counter"), name
        if kind == "histogram":
            assert name.endswith("_seconds"), name
