"""Processes that a tool starts, each in a session of its own: what is typed at the tool's terminal reaches it
alone, and however it ends, it ends them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ending import undisturbed


@contextmanager
def child(
    command: Sequence[str], *, first: int = signal.SIGTERM, patience: float = 15.0, **how: Any
) -> Iterator[subprocess.Popen[Any]]:
    """In the end it is sent `first`, as is all that it started in its session, and after `patience` seconds
    killed. `how` is as for Popen."""
    process: subprocess.Popen[Any] | None = None
    try:
        with undisturbed():  # one that has been started and is not known yet would be left behind
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
        yield process
    finally:
        if process is not None:
            with undisturbed():  # who is impatient and interrupts once more would leave it behind, too
                _end(process, first, patience)


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What it says is added to `log`."""
    with log.open("ab") as out, child(command, stdout=out, stderr=subprocess.STDOUT) as process:
        yield process


def _end(process: subprocess.Popen[Any], first: int, patience: float) -> None:
    for number in (first, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            continue
        break
    if process.stdout is not None:
        process.stdout.close()
