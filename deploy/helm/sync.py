"""What the chart carries of the rest of the repository: `make chart` writes it, a test compares.

README.md is made out of the values, what `gateway.config` may hold out of the gateway's settings; dashboards
and alerts are copies, since helm packs no links.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.routing.policies.parameters import bounds_of
from gateway.routing.registry import POLICIES
from gateway.settings import OF_DISCOVERY, Settings
from gateway.settings_load import OF_COMMANDS

CHART = Path(__file__).parent / "prefix-gateway"
ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"


def described(text: str) -> Iterator[tuple[str, str]]:
    """(dotted name, description) of every value that a `# --` comment stands above."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        body = line.strip()
        indent = len(line) - len(line.lstrip())
        if body.startswith("# -- "):
            comment = [body.removeprefix("# -- ")]
        elif body.startswith("#") and comment:
            comment.append(body.removeprefix("# "))
        elif body and body[0] not in "#-":
            name = body.split(":", 1)[0]
            path = [(depth, part) for depth, part in path if depth < indent] + [(indent, name)]
            if comment:
                yield ".".join(part for _, part in path), " ".join(comment)
            comment = []


def default(values: dict[str, Any], name: str) -> str:
    """Flow-style YAML of a default, or what stands for a whole group."""
    value: Any = values
    for part in name.split("."):
        value = value[part]
    shown = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()
    return shown.removesuffix("\n...").strip()


def readme() -> str:
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    groups = {name for name, _ in described(text)}
    rows = []
    for name, said in described(text):
        # a group whose parts are described each shows none of its own
        whole = any(other.startswith(name + ".") for other in groups)
        shown = "" if whole else f"`{default(values, name)}`"
        rows.append(f"| `{name}` | {said} | {shown} |".replace("|| ", "| "))
    table = "\n".join(["| value | what it is | default |", "|---|---|---|", *rows])
    return (CHART.parent / "README.head.md").read_text() + "\n" + table + "\n"


def of_chart() -> frozenset[str]:
    """Settings that the chart makes itself: its templates say what to set instead, its schema nothing."""
    text = (CHART / "templates" / "_settings.tpl").read_text()
    listed = text.split('define "pg.settingsOfChart"')[1].split("{{- end -}}")[0]
    return frozenset(re.findall(r"^(\w+): ", listed, re.MULTILINE))


_HOST = r"(\[[0-9a-f:.]+\]|[^\s/,@?#:\[\]A-Z]+)(:[0-9]{1,5})?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
GRAMMARS: dict[str, dict[str, Any]] = {
    "passthrough_paths": {
        "pattern": r"^/[^*]*\*?$",
        "description": "a path that begins with / and may end in *",
    },
    "worker_networks": {
        "pattern": rf"^({_BYTE}(\.{_BYTE}){{3}}(/([0-9]|[12][0-9]|3[0-2]))?"
        r"|[0-9a-fA-F]*:[0-9a-fA-F:.]*(/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))?)$",
        "description": "a network like 10.0.0.0/8",
    },
    "cors_origins": {
        "pattern": rf"^(\*|null|[a-z][a-z0-9+.-]*://{_HOST})$",
        "not": {"pattern": "^(http://.*:80|https://.*:443)$"},
        "description": "an origin as browsers send it, like https://chat.example, without a standard port",
    },
    "door_headers": {"pattern": r"^[^*]+\*?$", "description": "a header's name, which may end in *"},
    "workers_file": {"minLength": 1},
    "otlp_endpoint": {
        "pattern": "^[hH][tT][tT][pP][sS]?://([^/?#@]*@)?[^/?#@:]",
        "description": "a URL like http://collector:4318/v1/traces",
    },
}
"""What the gateway checks of a text, by setting: in `settings_checks.py`, and where the setting is used."""


def setting(made: dict[str, Any]) -> dict[str, Any]:
    """Types and bounds of one setting, without texts and defaults."""
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    options = [option for option in made.get("anyOf", [made]) if option["type"] != "null"]
    (option,) = options
    schema = {key: option[key] for key in kept if key in option}
    for part in ("items", "additionalProperties"):
        if isinstance(option.get(part), dict):
            schema[part] = setting(option[part])
    if "anyOf" in made:
        schema["type"] = [schema["type"], "null"]
    return schema


def of_gateway() -> dict[str, dict[str, Any]]:
    """Types and bounds of all settings but the chart's own."""
    skipped, found = of_chart(), {}
    for name, made in sorted(Settings.model_json_schema()["properties"].items()):
        if name in skipped:
            continue
        schema = found[name] = setting(made)
        if name == "policy":
            schema["enum"] = sorted(POLICIES)
        elif name == "shadow_policy":
            schema["enum"] = ["", *sorted(POLICIES)]
        elif name == "model_policies":
            schema["additionalProperties"]["enum"] = sorted(POLICIES)
        if name in GRAMMARS:
            schema.get("items", schema).update(GRAMMARS[name])
    return found


def parameters(policy: str) -> dict[str, dict[str, Any]]:
    """What `policy_params` may hold for this policy."""
    factory, found = POLICIES[policy], {}
    for name in inspect.signature(factory).parameters:
        if name in ("random", "name"):
            continue
        kind, bounds = bounds_of(factory, name)
        found[name] = {
            "type": "integer" if kind is int else "number",
            "minimum": bounds.least,
            "maximum": bounds.most,
        }
    return found


def checks() -> str:
    """What the templates hold against `GATEWAY_…` variables, which no schema sees, and against what depends
    on another value."""
    known = {
        "settings": of_gateway(),
        "policies": {name: parameters(name) for name in sorted(POLICIES)},
        "of_discovery": {
            name: list(kinds) for name, kinds in sorted(OF_DISCOVERY.items()) if name not in of_chart()
        },
        "of_commands": sorted(OF_COMMANDS),
    }
    return json.dumps(known, indent=1) + "\n"


def settings() -> str:
    """The schema's definition of `gateway.config`, a line a setting."""
    found, lines = of_gateway(), []
    for name in sorted(Settings.model_fields):
        lines.append(f'        "{name}": {json.dumps(found.get(name, True))}')
    head = '    "settings": {\n      "type": ["object", "null"],\n      "additionalProperties": false,\n'
    return head + '      "properties": {\n' + ",\n".join(lines) + "\n      }\n    },\n"


def schema() -> str:
    """values.schema.json, with the settings that there are now."""
    text = (CHART / "values.schema.json").read_text()
    return re.sub(
        r'^    "settings": \{\n.*?^    \},\n', lambda _: settings(), text, flags=re.DOTALL | re.MULTILINE
    )


def sync() -> None:
    (CHART / "values.schema.json").write_text(schema())
    (CHART / "README.md").write_text(readme())
    (CHART / "files" / "settings.json").write_text(checks())
    copies = CHART / "files" / "dashboards"
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir()
    for board in sorted(DASHBOARDS.glob("*.json")):
        shutil.copyfile(board, copies / board.name)
    if RULES.exists():
        shutil.copyfile(RULES, CHART / "files" / "rules.yaml")


if __name__ == "__main__":
    sync()
