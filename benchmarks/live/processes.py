"""What processes that lead groups of their own cost, and when they are ready."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path


def group_cpu_s(leader: int) -> float:
    """CPU seconds so far of the process group that `leader` leads, of all threads there are (Linux). By the
    scheduler's own count: the other one has steps of ten milliseconds, and a few requests take less."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # the name in brackets may hold blanks
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader:
                total += sum(int(task.read_text().split()[0]) for task in entry.glob("task/*/schedstat"))
        except OSError:
            continue
    return total / 1e9


def cores_busy_s(cores: Collection[int]) -> float:
    """CPU seconds that these cores have been busy with anything since the machine started (Linux)."""
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already
            ticks = [int(field) for field in fields[:8]]
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy / os.sysconf("SC_CLK_TCK")


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
    """Raises RuntimeError with the process's last words where it ends, or takes too long."""
    deadline = time.monotonic() + timeout
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            how = "ended" if process.poll() is not None else f"was not ready within {timeout:.0f} s"
            raise RuntimeError(f"{process.args!r} {how}: {log.read_text(errors='replace')[-600:]}")
        time.sleep(0.1)
