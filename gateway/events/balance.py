"""How the duties of writing workers are spread over replicas: those with few ask those with many. No I/O.

Every writer tells with its renewals how many workers it writes. A replica that mirrors a worker of one who
writes at least two more than itself asks for it, one worker at a time, and the writer hands it over if that
still is so. Each hand-over brings the two closer together, none swaps their places, so that it comes to rest:
of R replicas that follow the same W workers each writes W/R, give or take one.

The follower beside an engine (an agent's) hears it best: it asks for what it follows whoever writes it, and
is asked by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.types import WorkerId

MARGIN = 2
"""Who writes so many more than another gives one of them up: with less, the two would change places."""
PATIENCE_S = 15.0
"""A worker that was asked for in vain so long makes room for another choice."""


@dataclass(slots=True)
class Balance:
    """One process's side of it."""

    random: Callable[[], float]
    beside: bool = False
    """It stands beside an engine."""
    writing: set[WorkerId] = field(default_factory=set)
    _offers: dict[WorkerId, int] = field(default_factory=dict)
    """Mirrored workers, and how many their writers write."""
    _wish: WorkerId | None = None
    _wished_at: float = 0.0

    def told(self) -> int:
        """What to tell with a renewal; 0 asks to be left alone."""
        return 0 if self.beside else len(self.writing)

    def yields(self, asking: int) -> bool:
        """Whether to hand a worker over to one who asks with this figure."""
        return not self.beside and len(self.writing) >= asking + MARGIN

    def heard(self, worker: WorkerId, told: int, now: float) -> None:
        """The writer of a mirrored worker told this. 0 where the worker is not to be had now."""
        self._offers[worker] = told
        if self._wish is None or now - self._wished_at > PATIENCE_S or not self._wants(self._wish):
            self._choose(now)

    def asks(self, worker: WorkerId) -> int | None:
        """The figure to ask for this worker with; None where it is not asked for."""
        return self._figure if worker == self._wish and self._wants(worker) else None

    def took(self, worker: WorkerId) -> None:
        self.writing.add(worker)
        self.forget(worker)

    def dropped(self, worker: WorkerId) -> None:
        """It is written here no more."""
        self.writing.discard(worker)

    def forget(self, worker: WorkerId) -> None:
        """It is not mirrored any more."""
        self._offers.pop(worker, None)
        if worker == self._wish:
            self._wish = None

    @property
    def _figure(self) -> int:
        return -1 if self.beside else len(self.writing)

    def _wants(self, worker: WorkerId) -> bool:
        return self._offers.get(worker, 0) >= self._figure + MARGIN

    def _choose(self, now: float) -> None:
        """One of those whose writers have most to do."""
        most = max(self._offers.values(), default=0)
        best = [worker for worker, told in self._offers.items() if told == most and self._wants(worker)]
        self._wish = best[int(self.random() * len(best))] if best else None
        self._wished_at = now
