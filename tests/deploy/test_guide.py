"""What the guides tell people to type is taken by the chart and by our own command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import dedent

import click

from gateway.auth.source import read_key_file
from gateway.cli.main import cli
from tests.deploy.charts import CHART, render
from tests.deploy.tools import ROOT, Tools

PAGES = [ROOT / "docs" / "operations.md", ROOT / "docs" / "kubernetes.md", CHART / "README.md"]


def blocks(language: str) -> list[str]:
    found = [
        dedent(block)
        for page in PAGES
        for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert found
    return found


def test_values_in_the_guide_render(helm4: Tools, tmp_path: Path) -> None:
    shown = [b for b in blocks("yaml") if "engine:" in b]
    assert len(shown) == 3
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert render(helm4, path).names("Deployment")


def test_our_own_commands_in_the_guide_are_understood() -> None:
    lines = [
        line.strip().removeprefix("$ ").split("  #")[0]
        for block in blocks("console")
        for line in block.splitlines()
        if "prefix-gateway " in line and line.strip().startswith("$ prefix-gateway")
    ]
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(re.split(r"[|>]| 2>", line)[0])[1:]
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        command.make_context("x", [w for w in words if w != "2"])


def test_paths_and_pages_that_the_guide_names_exist() -> None:
    for page in PAGES[:2]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for path in re.findall(r"deploy/[\w./-]+\w", "\n".join(page.read_text() for page in PAGES)):
        assert (ROOT / path).exists(), path


def test_a_new_key_s_entry_is_a_key_file(tmp_path: Path) -> None:
    from click.testing import CliRunner

    made = CliRunner().invoke(cli, ["keys", "new", "--id", "team-a"])
    path = tmp_path / "keys.yaml"
    path.write_text(made.stderr)
    (key,) = read_key_file(path)
    assert key.id == "team-a"


def test_contributors_are_told_what_ci_runs_and_what_it_leaves_to_them() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.compile(r"`?make ([a-z-]+)")
    (sentence,) = re.findall(r"`\.ci/run` is (.*?)\n\n", page, re.DOTALL)
    script = (ROOT / ".ci" / "run").read_text()
    ran = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    in_order = dict.fromkeys(target for line in ran for target in targets.findall(line.partition(" ||")[0]))
    assert targets.findall(sentence) == list(in_order)
    known = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets.findall(page)) <= set(known)
    (by_hand,) = re.findall(r"By hand, (.*?)\n\n", page, re.DOTALL)
    assert "image-steps" in targets.findall(by_hand)
