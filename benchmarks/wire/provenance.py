"""What figures were measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.wire.routers import PYTHON, python_of


def measured_on(rounds: int, seconds: float, load_before: float) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gateway_python": python_of(PYTHON),
        "rounds": rounds,
        "seconds": seconds,
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
