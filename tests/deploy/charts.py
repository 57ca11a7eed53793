"""Renders the chart with a real helm, and finds things in what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import ROOT, Tools

CHART = ROOT / "deploy" / "helm" / "prefix-gateway"
MATRIX = sorted((CHART / "ci").glob("*.yaml"))
Object = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C where PyYAML was built with it: dashboards are long."""


@dataclass(frozen=True)
class Rendered:
    text: str
    objects: list[Object]

    def get(self, kind: str, name: str) -> Object:
        (found,) = [o for o in self.objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
        return found

    def names(self, kind: str) -> list[str]:
        return sorted(o["metadata"]["name"] for o in self.objects if o["kind"] == kind)

    def container(self, deployment: str, name: str) -> Object:
        spec = self.get("Deployment", deployment)["spec"]["template"]["spec"]
        (found,) = [c for c in spec["containers"] if c["name"] == name]
        return found


def command(values: Path | None, *sets: str, chart: Path = CHART) -> list[str]:
    args = ["template", "chat", str(chart), "--namespace", "llm"]
    if values is not None:
        args += ["-f", str(values)]
    for each in sets:
        args += ["--set", each]
    return args


def render(helm: Tools, values: Path | None = None, *sets: str, chart: Path = CHART) -> Rendered:
    text = _render(helm, values, *sets, chart=chart)
    return Rendered(text, [d for d in yaml.load_all(text, _LOADER) if d])


@cache  # many tests look at the same few sets
def _render(helm: Tools, values: Path | None, *sets: str, chart: Path) -> str:
    done = helm.run(helm.helm, *command(values, *sets, chart=chart))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(helm: Tools, values: Path | None = None, *sets: str) -> str:
    """What helm says when it refuses these values."""
    done = helm.run(helm.helm, *command(values, *sets))
    assert done.returncode != 0, "these values were taken"
    return done.stderr
