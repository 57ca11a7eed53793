"""A gateway starts with what it uses: it is started anew with each roll-out, scale-out and crash."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest

from gateway.cli.main import COMMANDS, cli

NOT_NEEDED = (
    "gateway.diagnosis.collect",
    "gateway.planning",
    "gateway.processes",
    "httpx",
    "kubernetes_asyncio",
    "numpy",
    "opentelemetry.sdk",
    "redis",
    "rich",
)
"""By a gateway that is one process, knows its workers from a list, and has neither Redis nor traces."""


def test_serve_loads_nothing_that_it_may_never_need() -> None:
    code = (
        "import sys, gateway.cli.serve, gateway.serving; print([m for m in sys.argv[1:] if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *NOT_NEEDED], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_found_by_its_name(name: str) -> None:
    with click.Context(cli) as context:
        command = cli.get_command(context, name)
    assert command is import_module(f"gateway.cli.{name}").command
    assert command.name == name


def test_an_unknown_command_is_none() -> None:
    with click.Context(cli) as context:
        assert cli.get_command(context, "options") is None
        assert cli.list_commands(context) == sorted(COMMANDS)
