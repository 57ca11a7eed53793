"""Every panel of every dashboard has data in a real Prometheus that scrapes a fleet under load; and an alert,
from the fault to the bell."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
import yaml

from grafana.boards import BOARDS
from grafana.expand import expand
from grafana.panels import Board, Panel
from grafana.queries import TTFT_BY_SHARE
from tests.e2e.conftest import wait_until
from tests.e2e.prometheus import RULES
from tests.e2e.watched import TRACE, Watched, watched

pytestmark = pytest.mark.timeout(700)

OF_SEVERAL_PROCESSES = {"gateway_processes", "gateway_processes_ready", "gateway_process_crashes_total"}
"""Their supervisor's; test_processes.py sees them."""
PANELS = [(board, panel) for board in BOARDS for panel in board.panels()]
NAME = re.compile(r"(?<![\w:])((?:gateway_|vllm:|process_)\w+)(?=[\[{)\s]|$)")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("watched")) as here:
        yield here


def _asked(expr: str) -> str:
    return expand(expr, rate_interval="15s", whole="5m")


def _id(value: object) -> str:
    return value.title if isinstance(value, Board | Panel) else ""


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=_id)
def test_the_panel_shows_something(fleet: Watched, board: Board, panel: Panel) -> None:
    def lines() -> list[int]:
        return [len(fleet.prometheus.query(_asked(query.expr))) for query in panel.queries]

    if panel.quiet:
        lines()  # it is well formed, and may have nothing to tell
    else:
        wait_until(lambda: all(lines()), 15, f"data in each query of {board.title} / {panel.title}")


def test_ttft_is_shown_of_cold_partial_and_warm_answers(fleet: Watched) -> None:
    (query,) = TTFT_BY_SHARE.queries

    def shown() -> list[str]:
        rows = fleet.prometheus.query(_asked(query.expr))
        return sorted(row["metric"]["cache"] for row in rows)

    wait_until(lambda: shown() == ["cold", "partial", "warm"], 15, "answers of each kind")


def test_every_metric_that_a_panel_asks_for_is_really_exported(fleet: Watched) -> None:
    # families that were declared and had no sample yet still say what they are
    declared: set[str] = set()
    for target in [*(r.admin for r in fleet.replicas), *(e.url for e in fleet.engines)]:
        text = httpx.get(target + "/metrics", trust_env=False, timeout=10).text
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                declared.add(name)
                if kind == "histogram":
                    declared |= {name + end for end in ("_bucket", "_count", "_sum")}
    asked = {
        name for _, panel in PANELS for query in panel.queries for name in NAME.findall(_asked(query.expr))
    }
    assert len(asked) > 50
    missing = {n for n in asked - declared if n.removesuffix("_total") not in declared}
    assert missing == {*OF_SEVERAL_PROCESSES, "gateway_process_connections"}  # SGLang's are no part of NAME


def test_rules_ask_for_metrics_that_are_exported(fleet: Watched) -> None:
    known = fleet.prometheus.metrics()
    document = yaml.safe_load(RULES.read_text())
    asked = {
        name for group in document["groups"] for rule in group["rules"] for name in NAME.findall(rule["expr"])
    }
    missing = {n for n in asked if n not in known}
    # series that are born with their first trouble
    assert missing - {"gateway_queue_requests"} == OF_SEVERAL_PROCESSES
    for name in ("reusable", "promised", "delivered"):
        wait_until(
            lambda name=name: bool(fleet.prometheus.query(f"model:gateway_{name}:ratio_rate5m")), 30, name
        )


def test_the_three_hit_rates_are_in_order(fleet: Watched) -> None:
    # in one query: counters run on between two
    rows = fleet.prometheus.query(
        'sum by (__name__) ({__name__=~"gateway_(prompt|reusable|matched)_tokens_total"})'
    )
    counted = {row["metric"]["__name__"].split("_")[1]: float(row["value"][1]) for row in rows}
    assert counted["prompt"] >= counted["reusable"] >= counted["matched"] > 0


def test_ttft_leads_to_its_trace(fleet: Watched) -> None:
    answer = httpx.get(
        fleet.prometheus.url + "/api/v1/query_exemplars",
        params={"query": "gateway_ttft_seconds_bucket", "start": "0", "end": "9999999999"},
        trust_env=False,
    )
    found = {e["labels"]["trace_id"] for series in answer.json()["data"] for e in series["exemplars"]}
    assert found == {TRACE}


def test_zz_redis_goes_away_and_the_bell_rings_and_stops(fleet: Watched) -> None:
    """Last of this file: it breaks the fleet that the others look at."""
    replicas = {replica.admin.removeprefix("http://") for replica in fleet.replicas}
    assert "PrefixGatewayRedisDegraded" not in fleet.prometheus.firing()

    def rung_for() -> set[str]:
        return {
            labels["instance"] for labels in fleet.prometheus.firing().get("PrefixGatewayRedisDegraded", [])
        }

    fleet.redis.kill()
    wait_until(lambda: rung_for() == replicas, 120, "an alert of each replica")
    fleet.redis.start()
    wait_until(lambda: not rung_for(), 120, "the end of the alert")
