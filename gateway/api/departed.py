"""Series of workers that left are dropped: where pods come and go, labels would pile up for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.fleet.worker import Worker
from gateway.metrics import Gauge
from gateway.types import Clock, WorkerId

KEPT_S = 600.0
"""Long enough for every scraper to have seen the last values."""


class Departed:
    """A fleet listener; the sweep rides on a scrape. Who is still `busy` with an answer is waited for: its
    record would bring the series back."""

    def __init__(
        self,
        forget: Callable[[str], None],
        busy: Callable[[WorkerId], bool],
        clock: Clock,
        *,
        kept_s: float = KEPT_S,
    ) -> None:
        self._forget = forget
        self._busy = busy
        self._clock = clock
        self._kept_s = kept_s
        self._left: dict[WorkerId, float] = {}

    def added(self, worker: Worker) -> None:
        self._left.pop(worker.id, None)

    def changed(self, worker: Worker) -> None:
        """Nothing leaves by changing."""

    def removed(self, worker: Worker) -> None:
        self._left[worker.id] = self._clock()

    def sweep(self) -> Iterable[Gauge]:
        """Reads like gauges, and is none."""
        until = self._clock() - self._kept_s
        for worker in [w for w, since in self._left.items() if since <= until and not self._busy(w)]:
            del self._left[worker]
            self._forget(worker)
        return ()
