"""`prefix-gateway serve`: the gateway in front of engines that run already."""

from __future__ import annotations

import sys
from typing import Any

import click

from gateway.cli.logs import configure
from gateway.cli.options import Given, settings_options
from gateway.cli.running import run
from gateway.errors import ConfigError
from gateway.settings import Settings


@click.command("serve")
@settings_options
def command(**given: Any) -> None:
    """Serve the gateway in front of running engines.

    \b
    prefix-gateway serve \\
      --worker http://10.0.0.1:8000,events=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558 \\
      --worker http://10.0.0.2:8000,events=tcp://10.0.0.2:5557,replay=tcp://10.0.0.2:5558
    """
    read = Given(given)
    settings = _with_workers(read())
    configure(settings.log_level, access=settings.access_log)
    sys.exit(run(settings, read_settings=lambda: _with_workers(read())))


def _with_workers(settings: Settings) -> Settings:
    """Raises ConfigError where there can be none: at the start, and at a reload, which would send them all
    away."""
    if settings.discovery == "static" and not settings.workers and settings.workers_file is None:
        raise ConfigError(
            "no workers: give --worker URL (repeat for each), GATEWAY_WORKERS, --workers-file, --discovery; "
            "`prefix-gateway up` starts workers of its own"
        )
    return settings
