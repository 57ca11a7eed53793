"""How long one step takes. The standard library alone: interpreters of peers run it, too."""

from __future__ import annotations

import time
from collections.abc import Callable

BATCH_S = 0.1
Row = tuple[str, str, float, float]
"""Step, unit, p50, p99."""


def timed(
    step: Callable[[], object], *, batches: int = 20, units: float = 1.0, batch_s: float | None = None
) -> tuple[float, float]:
    """(p50, p99) of the CPU seconds of one `step`, divided by `units`: over the means of batches of about
    `batch_s`. CPU is that of all threads of this process."""
    batch_s = BATCH_S if batch_s is None else batch_s
    step()
    began, runs = time.process_time(), 0
    while time.process_time() - began < batch_s / 2:
        step()
        runs += 2
    runs = max(1, runs)
    means = []
    for _ in range(batches):
        began = time.process_time()
        for _ in range(runs):
            step()
        means.append((time.process_time() - began) / runs / units)
    means.sort()
    return means[len(means) // 2], means[min(len(means) - 1, int(0.99 * len(means)))]
