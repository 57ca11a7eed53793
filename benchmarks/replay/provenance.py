"""Where which rows of the study were computed. Virtual time does not depend on it; how long it took does."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """One run of the study."""

    experiments: tuple[str, ...]
    policies: str
    """What the names of the policies begin with that were computed anew, beside rows that were missing;
    empty: all of them."""
    python: str
    machine: str
    cores: int
    processes: int
    seconds: int

    def __str__(self) -> str:
        what = f"{self.policies}… of " if self.policies else ""
        where = f"Python {self.python}, {self.machine}, {self.processes} processes on {self.cores} cores"
        return f"{what}{', '.join(self.experiments)}: {where}, {self.seconds} s"


def this_machine(experiments: Sequence[str], policies: str, processes: int, seconds: float) -> Origin:
    return Origin(
        tuple(experiments),
        policies,
        platform.python_version(),
        f"{platform.machine()} {platform.system()}",
        os.cpu_count() or 0,
        processes,
        round(seconds),
    )


def merged(origins: Sequence[Origin], new: Origin, partly: Collection[str] = ()) -> list[Origin]:
    """`new` takes the place of what earlier runs said of the same rows; of experiments that were computed
    `partly` it stands beside that."""
    kept = []
    for origin in origins:
        left = origin.experiments
        if origin.policies.startswith(new.policies):
            left = tuple(name for name in left if name not in new.experiments or name in partly)
        if left:
            kept.append(msgspec.structs.replace(origin, experiments=left))
    return [*kept, new]
