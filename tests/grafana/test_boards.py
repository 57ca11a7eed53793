"""Dashboards: what is committed is what the code says, and every expression means something."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grafana.__main__ import texts
from grafana.boards import BOARDS
from grafana.expand import expand
from grafana.panels import COLUMNS, Board, Panel, dashboard
from tests.debian import program

ROOT = Path(__file__).resolve().parents[2]
EVERY = [(board, panel) for board in BOARDS for panel in board.panels()]


def _name(value: object) -> str:
    return value.title if isinstance(value, Board | Panel) else ""


def test_committed_dashboards_are_what_the_code_says() -> None:
    for path, text in texts().items():
        assert path.read_text() == text, f"{path.name}: run `python -m grafana`"
    assert {p.name for p in (ROOT / "grafana/dashboards").iterdir()} == {p.name for p in texts()}


def test_the_chart_brings_the_same_boards_and_rules() -> None:
    files = ROOT / "deploy/helm/prefix-gateway/files"
    copies = {path.name: path.read_text() for path in (files / "dashboards").iterdir()}
    assert copies == {path.name: text for path, text in texts().items()}
    assert (files / "rules.yaml").read_text() == (ROOT / "deploy/prometheus/rules.yaml").read_text()


@pytest.mark.parametrize("board", BOARDS, ids=_name)
def test_panels_have_places_of_their_own(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    made = dashboard(board)
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


@pytest.mark.parametrize("board", BOARDS, ids=_name)
def test_every_panel_is_described_and_follows_the_choice_of_datasource(board: Board) -> None:
    for panel in dashboard(board)["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"].rstrip().endswith((".", "?", "!")), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("board", BOARDS, ids=_name)
def test_every_variable_is_there_and_every_one_there_is_used_or_common(board: Board) -> None:
    made = dashboard(board)
    names = {v["name"] for v in made["templating"]["list"]}
    used = json.dumps(made["panels"])
    for name in {v["name"] for v in board.variables}:
        assert f"${name}" in used, f"{name} is chosen and changes nothing"
    for panel in board.panels():
        for query in panel.queries:
            # raises KeyError for a variable that this board does not have
            expand(query.expr, choice=dict.fromkeys(names, "1"))


def test_boards_link_to_each_other() -> None:
    for made in map(dashboard, BOARDS):
        (link,) = made["links"]
        assert link["type"] == "dashboards"
        assert set(link["tags"]) <= set(made["tags"])
        assert link["includeVars"]
        assert link["keepTime"]


@pytest.mark.timeout(700)  # the first run downloads the package
def test_every_expression_parses(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = []
    for board, panel in EVERY:
        for query in panel.queries:
            rules.append(
                {"record": f"x:{board.uid.replace('-', '_')}:{len(rules)}", "expr": expand(query.expr)}
            )
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "boards", "rules": rules}]}))
    tool = program("prometheus", "prometheus", "promtool", alone=True)["promtool"]
    done = subprocess.run(
        [str(tool.path), "check", "rules", str(file)], capture_output=True, text=True,
        env={**os.environ, **tool.env}, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.timeout(700)
def test_engines_of_both_kinds_are_shown(tmp_path: Path) -> None:
    """SGLang's names beside vLLM's, as in SGLang's scheduler metrics: one engine of each kind."""
    labels = {
        "v": '{instance="v",model_name="m",engine="0"}',
        "s": '{instance="s",model_name="m",tp_rank="0"}',
    }
    series = {
        f"vllm:kv_cache_usage_perc{labels['v']}": "0.5x10",
        f"vllm:num_requests_waiting{labels['v']}": "3x10",
        f"vllm:num_preemptions_total{labels['v']}": "0+60x10",
        f"sglang:token_usage{labels['s']}": "0.28x10",
        f"sglang:num_queue_reqs{labels['s']}": "7x10",
        f"sglang:num_retracted_requests_total{labels['s']}": "0+120x10",
        # a second pipeline stage, and one of the priorities: said already
        'sglang:num_queue_reqs{instance="s",model_name="m",tp_rank="0",pp_rank="1"}': "7x10",
        'sglang:num_queue_reqs{instance="s",model_name="m",tp_rank="0",priority="5"}': "4x10",
    }
    expected = {
        "K/V memory in use": {"v": 0.5, "s": 0.28},
        "Waiting inside engines": {"v": 3, "s": 7},
        "Preemptions": {"v": 1, "s": 2},
    }
    panels = {panel.title: panel for board, panel in EVERY if board.title == "Workers"}
    cases = [
        {
            "expr": expand(panels[title].queries[0].expr, rate_interval="2m", whole="5m"),
            "eval_time": "8m",
            "exp_samples": [
                {"labels": f'{{instance="{name}"}}', "value": value} for name, value in values.items()
            ],
        }
        for title, values in expected.items()
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": cases,
    }
    file = tmp_path / "engines.json"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    tool = program("prometheus", "prometheus", "promtool", alone=True)["promtool"]
    done = subprocess.run(
        [str(tool.path), "test", "rules", str(file)], capture_output=True, text=True,
        env={**os.environ, **tool.env}, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
