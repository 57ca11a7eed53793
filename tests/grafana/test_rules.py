"""Alerts: promtool's word on them, and a page for each."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.debian import program

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    tool = program("prometheus", "prometheus", "promtool", alone=True)["promtool"]
    return subprocess.run(
        [str(tool.path), *args], cwd=FOLDER, capture_output=True, text=True, timeout=100,
        env={**os.environ, **tool.env},
    )  # fmt: skip


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.mark.timeout(700)  # the first run downloads the package
def test_promtool_finds_no_fault() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(700)
def test_every_case_fires_or_stays_quiet_as_stated() -> None:
    done = promtool("test", "rules", "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [
        case
        for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    for alert in alerts():
        fires = {bool(c["exp_alerts"]) for c in cases if c["alertname"] == alert["alert"]}
        assert fires >= {True}, alert["alert"]
    quiet = {c["alertname"] for c in cases if not c["exp_alerts"]}
    # the slow burn's quiet cases are the models that are absent from its list
    assert {a["alert"] for a in alerts()} - quiet == {"PrefixGatewayTtftBudgetBurns"}


@pytest.mark.parametrize("alert", alerts(), ids=lambda a: a["alert"])
def test_its_page_says_what_it_means_and_what_to_do(alert: dict[str, Any]) -> None:
    page = (ROOT / alert["annotations"]["runbook_url"]).read_text()
    assert f"`{alert['alert']}`" in page
    assert {"## Meaning", "## Look", "## Act"} <= set(page.splitlines())


def test_the_guide_lists_every_alert_with_its_severity_and_page() -> None:
    guide = (ROOT / "docs" / "observability.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\]\((runbooks/alerts/[\w-]+\.md)\) \| (\w+) \|", guide, re.MULTILINE)
    assert sorted(listed) == sorted(
        (
            alert["alert"].removeprefix("PrefixGateway"),
            alert["annotations"]["runbook_url"].removeprefix("docs/"),
            alert["labels"]["severity"],
        )
        for alert in alerts()
    )


def test_no_rule_mixes_two_fleets() -> None:
    """Whatever is summed up keeps the namespace and the job."""
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
            assert labels.startswith("namespace, job"), rule["expr"]
        assert "without (" not in rule["expr"]
