"""Processes that are pinned to cores and end with what measures them, and the CPU they take."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def pinned(cores: str, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            ["taskset", "-c", cores, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def running(cores: str, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = None
    try:
        with undisturbed():
            process = pinned(cores, command, log)
        yield process
    finally:
        if process is not None:
            _end(process)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end this program wait until this has ended: a process that has been started and is not
    known yet would be left behind."""
    waiting: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for told in waiting:
            signal.raise_signal(told)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            continue
        return


def cpu_seconds(pid: int) -> float:
    """Run time of process `pid` and all that came from it, all threads, in seconds."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:  # the name before them, in brackets, may hold anything
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (OSError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
    total = 0
    for own in parents:
        above: int | None = own
        while above is not None and above != pid:
            above = parents.get(above)
        if above == pid:
            try:
                tasks = Path(f"/proc/{own}/task").glob("*/schedstat")
                total += sum(int(task.read_text().split()[0]) for task in tasks)
            except (OSError, ProcessLookupError):
                continue
    return total / 1e9
