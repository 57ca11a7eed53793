"""One process or several, as the settings say."""

from __future__ import annotations

from pathlib import Path

from gateway.serving import OnReady, ReadSettings, serve
from gateway.settings import Settings


def run(
    settings: Settings, read_settings: ReadSettings, on_ready: OnReady | None = None, log: Path | None = None
) -> int:
    """Serves until a signal. Raises ConfigError. `log` is where this process logs to, if not to stderr.
    Returns the exit code: 1 where a process had to be killed at the end."""
    if settings.processes == 1:
        serve(settings, on_ready, read_settings)
        return 0
    from gateway.processes.run import serve_processes  # which takes a while, and is nothing to one alone

    return 0 if serve_processes(settings, on_ready, read_settings, log) else 1
