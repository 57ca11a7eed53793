"""`python -m gateway` and the console script `prefix-gateway`."""

from __future__ import annotations

import sys

from gateway import early_signals

_RELOADED = ("serve", "up", "process")
"""Commands whose process knows SIGHUP and SIGUSR2."""


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in _RELOADED:
        early_signals.note()  # before imports, which take most of a start
    from gateway.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
