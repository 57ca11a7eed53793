"""What targets take is told: in `make help`, or on a page."""

from __future__ import annotations

import re
import subprocess

from tests.conftest import ROOT

OWN = {
    "BIN", "DYNAMO", "DYNAMO_NEEDS", "LOCK_FLAGS", "MAKEFILE_LIST", "MODEL_STAMP", "SHELL", "VENV",
}  # fmt: skip
"""The Makefile's own business."""


def test_each_variable_is_named_where_a_user_looks() -> None:
    makefile = (ROOT / "Makefile").read_text()
    taken = set(re.findall(r"\$\(([A-Z_]+)\)|\$\$\{([A-Z_]+)", makefile))
    names = {name for pair in taken for name in pair if name} - OWN
    # and what the programs behind the targets read themselves
    for folder in ("benchmarks", "tests/heavy"):
        for path in (ROOT / folder).rglob("*.py"):
            names |= set(re.findall(r'os\.environ\.get\("([A-Z_]+)"', path.read_text()))
    assert {"AGAINST", "BENCH_ARGS", "BENCH_PEERS", "CHAOS_RESULTS", "PYTHON", "SOAK_SECONDS"} <= names
    told = "\n".join(re.findall(r"^[a-z-]+:.*## (.*)", makefile, re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        told += page.read_text()
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", told)) == []


def test_peers_are_installed_where_they_are_looked_for() -> None:
    """Told as everything is: on make's command line."""
    asked = ["make", "--dry-run", "--no-print-directory", "bench-peers", "BENCH_PEERS=/opt/peers"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".cache" not in said
    assert "test -x /opt/peers/dynamo/bin/python || python3 -m venv /opt/peers/dynamo" in said.splitlines()
