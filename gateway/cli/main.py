"""The command group, and the one place where an error of ours becomes a line on stderr and an exit code."""

from __future__ import annotations

import sys

import click

from gateway import __version__
from gateway.cli import agent, analyze, doctor, explain, index, keys, plan, process, serve, settings, up
from gateway.errors import GatewayError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="prefix-gateway")
def cli() -> None:
    """The front door of a fleet of LLM engines: exact prefix-cache routing."""


cli.add_command(serve.command)
cli.add_command(process.command)
cli.add_command(up.command)
cli.add_command(agent.command)
cli.add_command(explain.command)
cli.add_command(index.command)
cli.add_command(keys.command)
cli.add_command(settings.command)
cli.add_command(plan.command)
cli.add_command(doctor.command)
cli.add_command(analyze.command)


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
