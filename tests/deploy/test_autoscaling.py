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
from tests.deploy.charts import CHART, refusal, render
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
QUEUED = {
    # the label names the adapter too, where there is one
    ("llm", "gw-0", f"{NAME}-admin", "qwen"): 40,
    ("llm", "gw-1", f"{NAME}-admin", "qwen:poet"): 500,
    ("llm", "gw-1", f"{NAME}-admin", "qwen2"): 9,
    ("llm", "gw-1", f"{NAME}-admin", "qwen2.5"): 7,
    ("llm", "gw-1", f"{NAME}-admin", "qwen2x5"): 2000,
    ("llm", "gw-9", "second-admin", "qwen"): 3000,
    ("away", "gw-0", f"{NAME}-admin", "qwen"): 5000,
}
LABELS = ("namespace", "pod", "service", "model", "worker")


def _labels(values: tuple[str, ...]) -> str:
    return ",".join(
        f'{name}="{value}"' for name, value in zip(LABELS, values, strict=False)
    )  # a queue has no worker


def evaluated(expressions: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Fails with promtool's words where an expression over SERIES and QUEUED is not what is stated."""
    series: list[tuple[str, tuple[str, ...], int]] = []
    series += [(METRIC, names, value) for names, value in SERIES.items()]
    series += [("gateway_queue_requests", names, value) for names, value in QUEUED.items()]
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f"{metric}{{{_labels(labels)}}}",
                        "values": f"{value}x3",
                    }
                    for metric, labels, value in series
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


def adapter_rules() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "metricsQuery" in b]
    return list(yaml.safe_load(block)["rules"])


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
    rule, demand = adapter_rules()
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
    assert demand["seriesQuery"].partition("{")[0] == METRIC
    assert demand["name"] == {"as": engines["metric"]["name"]}
    assert demand["resources"]["overrides"].keys() == {"namespace", "service"}
    described = engines["describedObject"]
    assert described == {"apiVersion": "v1", "kind": "Service", "name": f"{NAME}-admin"}
    chosen = engines["metric"]["selector"]["matchLabels"]
    of_engines = adapted(demand, {"namespace": "llm", "service": described["name"], **chosen}, "service")
    evaluated(
        {
            of_pods: [{"labels": '{pod="gw-0"}', "value": 8}, {"labels": '{pod="gw-1"}', "value": 10}],
            of_engines: [{"labels": f'{{service="{NAME}-admin"}}', "value": 57}],
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
    dotted = render(helm4, CHART / "ci" / "keda.yaml", "engine.servedModelName=qwen2.5")
    nobody = render(helm4, CHART / "ci" / "keda.yaml", "engine.servedModelName=nobody")
    evaluated(
        {
            query(rendered, NAME): [{"labels": "{}", "value": 18}],
            # 17 in flight, 40 wait for the model and 500 for its adapter
            query(rendered, f"{NAME}-engine"): [{"labels": "{}", "value": 557}],
            query(dotted, f"{NAME}-engine"): [{"labels": "{}", "value": 7}],
            # nothing known is no zero: KEDA is told to leave the pods as they are
            query(nobody, f"{NAME}-engine"): [],
        },
        tmp_path,
    )
    (trigger,) = rendered.get("ScaledObject", f"{NAME}-engine")["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


@pytest.mark.parametrize(
    ("args", "counted"),
    [
        (["--served-model-name=qwen"], "qwen"),
        (["--served-model-name qwen other"], "qwen"),
        (["--served-model-name", "qwen", "other"], "qwen"),
        (["--served_model_name", "qwen"], "qwen"),
        (["--max-model-len=8192"], "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_the_name_in_an_engine_s_args_is_the_one_that_is_counted(
    helm4: Tools, tmp_path: Path, args: list[str], counted: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"engine": {"args": args, "autoscaling": {"enabled": True}}}))
    rendered = render(helm4, values)
    (trigger,) = rendered.get("ScaledObject", f"{NAME}-engine")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    (pattern,) = re.findall(r'model=~"(.*?)"', query)
    assert pattern == re.escape(counted).replace("\\-", "-").replace("\\", "\\\\") + "(:.+)?"
    given = rendered.container(f"{NAME}-engine", "engine")["args"]
    assert sum("served" in arg for arg in given) == sum("served" in arg for arg in args)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("engine.servedModelName=a", "engine.args={--served-model-name=b}"), "give one of them"),
        (("engine.autoscaling.enabled=true", "engine.autoscaling.type=hpa"), "set servedModelName"),
        (("engine.autoscaling.enabled=true", "extraEngines.b.replicas=1",
          "extraEngines.b.autoscaling.enabled=false"), "pool b serves Qwen/Qwen2.5-7B-Instruct as well"),
        (("extraEngines.b.autoscaling.enabled=true",), "pool engine serves"),
    ],
)  # fmt: skip
def test_what_would_be_scaled_by_the_wrong_figure_is_refused(
    helm4: Tools, sets: tuple[str, ...], said: str
) -> None:
    assert said in refusal(helm4, None, *sets)
