"""A gateway to which nothing has happened yet exports, at zero, all that rules and boards take a rate of:
what is born with its first failure has not increased."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest
import yaml
from prometheus_client.samples import Sample

from gateway.api.recorder import EventMetrics, LastingMetrics
from gateway.app import App, build
from gateway.auth.hashing import sha256_of
from gateway.fleet.probe import Learned
from gateway.fleet.worker import EngineInfo, WorkerSpec
from gateway.metrics import FAILURES, UNROUTED, LiveState
from gateway.processes.crew import Crew
from gateway.processes.scrape import supervisor_gauges
from gateway.routing.route import Outcome
from gateway.settings import Settings
from grafana.boards import BOARDS
from grafana.expand import expand

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
PAGE = ROOT / "docs" / "metrics.md"
RATED = re.compile(r"(?:rate|increase)\((gateway_\w+_total)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)=(~?)"([^"]*)"')
FROM_ELSEWHERE = {"namespace", "job", "instance"}
"""Labels that Prometheus gives."""
WORKER = "http://127.0.0.1:1"


def asked() -> set[tuple[str, str]]:
    """Counters that a rate is taken of, with what is asked of their labels."""
    rules = yaml.safe_load(RULES.read_text())["groups"]
    exprs = chain(
        (rule["expr"] for group in rules for rule in group["rules"]),
        (expand(q.expr) for board in BOARDS for panel in board.panels() for q in panel.queries),
    )
    return {found for expr in exprs for found in RATED.findall(expr)}


def made() -> App:
    # nothing is entered, so nothing connects
    app = build(
        Settings(
            workers=(f"{WORKER},events=tcp://127.0.0.1:2",), redis_url="redis://127.0.0.1:1/0",
            discovery="redis", api_keys=(f"shop={sha256_of('secret')}",),
        )
    )  # fmt: skip
    spec = WorkerSpec(WORKER, events="tcp://127.0.0.1:2")
    worker = app.registry.add(spec)
    app.registry.learned(worker.id, Learned(EngineInfo("m")))
    # what begins once it is entered
    EventMetrics(app.metrics).followed(worker.id)
    LastingMetrics(app.metrics).begun("events")
    app.metrics.registry.register(LiveState(lambda: supervisor_gauges(Crew(lambda: 0.0), 1, 0)))
    return app


@pytest.fixture(scope="module")
def fresh() -> App:
    """It has heard from one engine which model that serves, and nobody has asked it anything. For reading."""
    return made()


def samples(app: App) -> list[Sample]:
    return [sample for family in app.metrics.registry.collect() for sample in family.samples]


def fits(labels: Mapping[str, str], matchers: str) -> bool:
    wanted = ((n, like, v) for n, like, v in MATCHER.findall(matchers) if n not in FROM_ELSEWHERE)
    return all(
        re.fullmatch(value if like else re.escape(value), labels.get(name, ""))
        for name, like, value in wanted
    )


@pytest.mark.parametrize(("name", "matchers"), sorted(asked()), ids=lambda value: value or "all")
def test_what_a_rate_is_taken_of_is_there_before_anything_happens(
    fresh: App, name: str, matchers: str
) -> None:
    found = [s for s in samples(fresh) if s.name == name and fits(s.labels, matchers)]
    assert found
    # the sources of workers alone have been asked
    assert {sample.value for sample in found} == {0.0}


def test_every_counter_has_a_series_but_those_of_a_shadow(fresh: App) -> None:
    empty = {f.name for f in fresh.metrics.registry.collect() if f.type == "counter" and not f.samples}
    assert empty == {
        "gateway_shadow_decisions", "gateway_shadow_gain_tokens", "gateway_shadow_loss_tokens",
    }  # fmt: skip


def test_each_failure_of_a_chat_is_counted_from_zero_and_others_from_their_first_request() -> None:
    fresh = made()

    def ends(endpoint: str) -> set[tuple[str, str, str]]:
        return {
            (s.labels["worker"], s.labels["outcome"], s.labels["code"])
            for s in samples(fresh)
            if s.name == "gateway_requests_total" and s.labels["endpoint"] == endpoint
        }

    failures = {(WORKER, outcome, str(code)) for outcome, code in FAILURES}
    failures |= {("", outcome, str(code)) for outcome, code in UNROUTED}
    assert ends("/v1/chat/completions") == failures
    assert not ends("/v1/messages")
    fresh.metrics.per_worker("m", WORKER).end("/v1/messages", "ok", 200)
    assert ends("/v1/messages") == {*failures, (WORKER, "ok", "200")}
    assert {outcome for outcome, _ in (*FAILURES, *UNROUTED)} < {outcome.value for outcome in Outcome}


def test_a_worker_has_as_many_series_as_the_page_says() -> None:
    """A fleet of hundreds must not flood a Prometheus: no counter at zero has three labels of many values."""
    app = made()
    before = len(samples(app))
    worker = app.registry.add(WorkerSpec("http://127.0.0.1:3", events="tcp://127.0.0.1:4"))
    app.registry.learned(worker.id, Learned(EngineInfo("m")))
    idle = len(samples(app)) - before
    for outcome, code in (("ok", 200), ("cancelled", 499)):
        app.metrics.per_worker("m", worker.id).end("/v1/chat/completions", outcome, code)
    EventMetrics(app.metrics).batch(worker.id, 1, 0.001)
    (said,) = re.findall(r"A worker has (\d+) series", PAGE.read_text())
    assert (idle, len(samples(app)) - before) == (180, int(said))
