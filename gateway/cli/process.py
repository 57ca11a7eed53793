"""`prefix-gateway process`: one of the processes of `serve --processes N`, started by it alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.cli.logs import configure
from gateway.processes.child import serve_as_child
from gateway.processes.wire import Begin
from gateway.settings import Settings


@click.command("process", hidden=True)
@click.option("--control", type=int, required=True)
@click.option("--listening", type=int, required=True)
@click.option("--board", type=int, required=True)
def command(control: int, listening: int, board: int) -> None:
    """A gateway process. `prefix-gateway serve --processes N` starts it, with open descriptors."""
    sys.exit(serve_as_child(control, listening, board, _configure))


def _configure(settings: Settings, begin: Begin) -> None:
    configure(
        settings.log_level,
        access=settings.access_log,
        path=None if begin.log is None else Path(begin.log),
        process=begin.number,
    )
