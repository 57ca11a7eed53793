"""The command group, and the one place where an error of ours becomes a line on stderr and an exit code."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gateway import __version__
from gateway.errors import GatewayError

COMMANDS = (
    "serve", "process", "up", "agent", "explain", "index", "keys", "settings", "plan", "doctor", "analyze",
)  # fmt: skip
"""Each is `command` in the module of its name."""


class _Commands(click.Group):
    """A command's module is loaded when it is called or listed: `serve` needs nothing of `plan`'s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gateway.cli.{cmd_name}").command
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="prefix-gateway")
def cli() -> None:
    """The front door of a fleet of LLM engines: exact prefix-cache routing."""


def main() -> None:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except GatewayError as e:
        for line in e.message.splitlines():
            click.echo(f"error: {line}", err=True)
        sys.exit(2)
