"""A worker that fails its health checks and says nothing to anybody either: who waits there for the first
byte of an answer is asked elsewhere.

Without it a worker that hangs keeps what it was given until the limits of the requests are over, minutes
later. One that is merely slow is left alone: while any of its answers goes on, it is at work, and to begin
anew elsewhere would make the others slow as well. So is one where nobody else could take its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.fleet.guards import Guards
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker, WorkerState
from gateway.types import Clock

logger = logging.getLogger(__name__)

GiveUp = Callable[[str, str, float], int]
"""Base URL, why, seconds of silence: fails whoever waits there for a first byte if it was silent for so long.
Returns how many."""


class Relief:
    def __init__(
        self, registry: Registry, guards: Guards, clock: Clock, give_up: GiveUp, silent_s: float
    ) -> None:
        self._registry = registry
        self._guards = guards
        self._clock = clock
        self._give_up = give_up
        self._silent_s = silent_s

    def __call__(self, worker: Worker) -> None:
        """`worker` has failed one more check after those that gave it up."""
        if not self._has_stand_in(worker):
            return
        moved = self._give_up(worker.spec.url, "it fails its health checks, too", self._silent_s)
        if moved:
            logger.warning(
                "a worker says nothing any more: what waits there is asked elsewhere",
                extra={"worker": worker.id, "requests": moved, "reason": worker.reason},
            )

    def _has_stand_in(self, worker: Worker) -> bool:
        names = _names(worker)
        return bool(names) and any(
            other.state is WorkerState.READY
            and other.spec.url != worker.spec.url
            and names <= _names(other)
            and self._guards.refusal(other.id, self._clock()) is None
            for other in self._registry.workers()
        )


def _names(worker: Worker) -> set[str]:
    """Whatever a request may have asked it for."""
    info = worker.info
    return set() if info is None else {info.model, *info.served_names, *info.adapters}
