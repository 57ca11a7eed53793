"""Objects of the Prometheus operator, KEDA and the Gateway API against their own schemas.

`tests/data/crds/*.json` hold the shapes of their CustomResourceDefinitions (fields, types, bounds; no texts),
each with its source, release and licence. A newer release:

    python -m tests.deploy.custom_kinds OWNER/REPOSITORY@TAG CRD.yaml …
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.deploy.tools import ROOT

FOLDER = ROOT / "tests" / "data" / "crds"
Json = dict[str, Any]

_KEPT = ("type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
         "maxItems", "minProperties", "maxProperties")  # fmt: skip


def shape(schema: Json) -> Json:
    """An OpenAPI v3 schema of a CRD as a JSON schema as strict as `kubectl --validate=strict`: unknown fields
    are refused, unless the CRD keeps them."""
    made: Json = {key: schema[key] for key in _KEPT if key in schema}
    if "(?i)" in made.get("pattern", ""):  # Go takes a flag anywhere, Python at the beginning
        made["pattern"] = "(?i)" + made["pattern"].replace("(?i)", "")
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if schema.get("nullable"):
        made["type"] = [made["type"], "null"]
    if "properties" in schema:
        made["properties"] = {name: shape(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = shape(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = shape(schema["items"])
    return made


def read(source: str, crd: Json) -> Json:
    """What is kept of one CustomResourceDefinition."""
    spec = crd["spec"]
    versions = {}
    for version in spec["versions"]:
        if version["served"]:
            made = shape(version["schema"]["openAPIV3Schema"])
            made["properties"].pop("status", None)
            # the API server knows what metadata looks like
            made["properties"]["metadata"] = {"type": "object", "required": ["name"]}
            versions[f"{spec['group']}/{version['name']}"] = made
    return {"source": source, "licence": "Apache-2.0", "kind": spec["names"]["kind"], "versions": versions}


@cache
def _known() -> dict[tuple[str, str], Draft202012Validator]:
    found = {}
    for path in FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        for version, schema in document["versions"].items():
            Draft202012Validator.check_schema(schema)
            found[version, document["kind"]] = Draft202012Validator(schema)
    return found


def is_custom(item: Json) -> bool:
    return (item["apiVersion"], item["kind"]) in _known()


def faults(item: Json) -> list[str]:
    """What the API server would refuse it for."""
    validator = _known()[item["apiVersion"], item["kind"]]
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(item)]


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        kept = read(sys.argv[1], yaml.safe_load(Path(name).read_text()))
        text = json.dumps(kept, separators=(",", ":"), sort_keys=True)
        (FOLDER / f"{kept['kind'].lower()}.json").write_text(text + "\n")
