"""A worker that fails its health checks and says nothing to anybody either: who waits there for the first
byte of an answer is asked elsewhere.

Without it a worker that hangs keeps what it was given until the limits of the requests are over, minutes
later. One that is merely slow is left alone: while any of its answers goes on, it is at work, and to begin
anew elsewhere would make the others slow as well. So is one where nobody else could take its place.
"""

from __future__ import annotations

import logging
from typing import Protocol

from gateway.fleet.guards import Guards
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker, WorkerState
from gateway.types import Clock

logger = logging.getLogger(__name__)


class Waiting(Protocol):
    """Requests at workers (gateway.upstream.client)."""

    def waits(self, url: str) -> bool: ...

    def give_up(self, url: str, why: str, silent_s: float) -> int: ...


class Relief:
    def __init__(
        self, registry: Registry, guards: Guards, clock: Clock, waiting: Waiting, silent_s: float
    ) -> None:
        self._registry = registry
        self._guards = guards
        self._clock = clock
        self._waiting = waiting
        self._silent_s = silent_s

    def wanted(self, worker: Worker) -> bool:
        """Somebody waits there, also where it has left the fleet."""
        return self._waiting.waits(worker.spec.url)

    def relieve(self, worker: Worker) -> None:
        """`worker` has failed one more check after those that gave it up."""
        if not self._has_stand_in(worker):
            return
        moved = self._waiting.give_up(worker.spec.url, "it fails its health checks, too", self._silent_s)
        if moved:
            why = worker.reason or "it has left the fleet"
            logger.warning(
                "a worker says nothing any more: what waits there is asked elsewhere",
                extra={"worker": worker.id, "requests": moved, "reason": why},
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
