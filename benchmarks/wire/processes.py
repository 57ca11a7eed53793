"""Processes that are pinned to cores and end with what measures them, and the CPU they take."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import children


@contextmanager
def running(cores: str, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with children.running(["taskset", "-c", cores, *command], log) as process:
        yield process


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
