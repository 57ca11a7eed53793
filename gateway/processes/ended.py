"""Counters of processes that have ended: a sum that fell when one ends would be read as a restart of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.processes.families import Family
from gateway.processes.merge import adds_up, merged
from gateway.types import Clock

KEPT_S = 600.0
"""The series of a worker that nobody knows any more stay as long as they do in a process."""


class Ended:
    def __init__(self, clock: Clock, *, kept_s: float = KEPT_S) -> None:
        self._clock = clock
        self._kept_s = kept_s
        self._families: list[Family] = []
        self._unknown: dict[str, float] = {}
        """Workers that no process knew, and since when."""

    def families(self) -> list[Family]:
        return self._families

    def keep(self, families: Sequence[Family]) -> None:
        """The last word of a process."""
        self._families = merged([self._families, [family for family in families if adds_up(family)]])

    def sweep(self, known: Collection[str]) -> None:
        """`known` are the workers that living processes have series of."""
        now = self._clock()
        here = {
            worker for f in self._families for r in f.readings if (worker := r.labels.get("worker"))
        } - set(known)
        self._unknown = {worker: self._unknown.get(worker, now) for worker in here}
        gone = {worker for worker, since in self._unknown.items() if now - since >= self._kept_s}
        if gone:
            self._families = [
                Family(f.name, f.type, f.text, [r for r in f.readings if r.labels.get("worker") not in gone])
                for f in self._families
            ]


def workers_in(families: Sequence[Family]) -> set[str]:
    return {worker for f in families for r in f.readings if (worker := r.labels.get("worker"))}
