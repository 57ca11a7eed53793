"""What scales the fleet asks for series that there are, and gets the figures that it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.debian import program
from tests.deploy.charts import CHART, render
from tests.deploy.tools import ROOT, Tools

NAME = "chat-prefix-gateway"
METRIC = "gateway_inflight_requests"
SERIES = {
    # labels as a ServiceMonitor's targets get them; of another release, and of another namespace
    ("llm", "gw-0", f"{NAME}-admin", "qwen", "w-0"): 3,
    ("llm", "gw-0", f"{NAME}-admin", "qwen", "w-1"): 4,
    ("llm", "gw-0", f"{NAME}-admin", "other", "w-2"): 1,
    ("llm", "gw-1", f"{NAME}-admin", "qwen", "w-0"): 10,
    ("llm", "gw-1", f"{NAME}-admin", "qwen", "w-1"): 0,
    ("llm", "gw-9", "second-admin", "qwen", "w-0"): 100,
    ("away", "gw-0", f"{NAME}-admin", "qwen", "w-0"): 1000,
}
LABELS = ("namespace", "pod", "service", "model", "worker")


def _labels(values: tuple[str, ...]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in zip(LABELS, values, strict=True))


def evaluated(expressions: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Fails with promtool's words where an expression over SERIES is not what is stated."""
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f"{METRIC}{{{_labels(labels)}}}",
                        "values": f"{value}x3",
                    }
                    for labels, value in SERIES.items()
                ],
                "promql_expr_test": [
                    {"expr": expr, "eval_time": "2m", "exp_samples": samples}
                    for expr, samples in expressions.items()
                ],
            }
        ],
    }
    file = folder / "test.json"  # JSON is YAML
    file.write_text(json.dumps(test))
    tool = program("prometheus", "prometheus", "promtool", alone=True)["promtool"]
    done = subprocess.run(
        [str(tool.path), "test", "rules", str(file)], capture_output=True, text=True, timeout=100,
        env={**os.environ, **tool.env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def adapter_rule() -> dict[str, Any]:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "metricsQuery" in b]
    (rule,) = yaml.safe_load(block)["rules"]
    return dict(rule)


def adapted(rule: dict[str, Any], matchers: dict[str, str], group: str) -> str:
    """A query as prometheus-adapter makes it of a rule, for objects of one kind."""
    query: str = rule["metricsQuery"]
    selectors = ",".join(f'{name}=~"{value}"' for name, value in matchers.items())
    for name, value in (("Series", METRIC), ("LabelMatchers", selectors), ("GroupBy", group)):
        query = query.replace(f"<<.{name}>>", value)
    assert "<<" not in query
    return query


@pytest.mark.timeout(700)  # the first run downloads the package
def test_the_adapter_s_rule_in_the_docs_serves_what_the_hpas_ask_for(helm4: Tools, tmp_path: Path) -> None:
    rendered = render(helm4, CHART / "ci" / "everything.yaml")
    rule = adapter_rule()
    # a rule without `name` serves a series under its own name, for each kind of object that a label names
    assert "name" not in rule
    assert rule["seriesQuery"].partition("{")[0] == METRIC
    resources = {o["resource"]: label for label, o in rule["resources"]["overrides"].items()}
    assert resources == {"namespace": "namespace", "pod": "pod", "service": "service"}

    pods = rendered.get("HorizontalPodAutoscaler", NAME)["spec"]["metrics"][1]["pods"]
    assert pods["metric"] == {"name": METRIC}
    of_pods = adapted(rule, {"namespace": "llm", "pod": "gw-0|gw-1"}, "pod")
    assert pods["target"] == {"type": "AverageValue", "averageValue": "400"}

    engines = rendered.get("HorizontalPodAutoscaler", f"{NAME}-engine")["spec"]["metrics"][0]["object"]
    assert engines["metric"]["name"] == METRIC
    described = engines["describedObject"]
    assert described == {"apiVersion": "v1", "kind": "Service", "name": f"{NAME}-admin"}
    chosen = engines["metric"]["selector"]["matchLabels"]
    of_engines = adapted(rule, {"namespace": "llm", "service": described["name"], **chosen}, "service")
    evaluated(
        {
            of_pods: [{"labels": '{pod="gw-0"}', "value": 8}, {"labels": '{pod="gw-1"}', "value": 10}],
            of_engines: [{"labels": f'{{service="{NAME}-admin"}}', "value": 17}],
        },
        tmp_path,
    )


@pytest.mark.timeout(700)
def test_what_keda_asks_counts_this_release_alone(helm4: Tools, tmp_path: Path) -> None:
    def query(rendered: Any, name: str) -> str:
        (trigger,) = [
            t for t in rendered.get("ScaledObject", name)["spec"]["triggers"] if t["type"] == "prometheus"
        ]
        return str(trigger["metadata"]["query"])

    rendered = render(helm4, CHART / "ci" / "keda.yaml", "engine.servedModelName=qwen")
    evaluated(
        {
            query(rendered, NAME): [{"labels": "{}", "value": 18}],
            query(rendered, f"{NAME}-engine"): [{"labels": "{}", "value": 17}],
        },
        tmp_path,
    )
