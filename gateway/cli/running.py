"""One process or several, as the settings say."""

from __future__ import annotations

from pathlib import Path

from gateway.serving import OnReady, ReadSettings, serve
from gateway.settings import Settings


def run(
    settings: Settings, read_settings: ReadSettings, on_ready: OnReady | None = None, log: Path | None = None
) -> None:
    """Serves until a signal. Raises ConfigError. `log` is where this process logs to, if not to stderr."""
    if settings.processes == 1:
        serve(settings, on_ready, read_settings)
    else:
        from gateway.processes.run import serve_processes  # which takes a while, and is nothing to one alone

        serve_processes(settings, on_ready, read_settings, log)
