"""Which workers take no slices, by what they said of the last one."""

from __future__ import annotations

from gateway.types import Clock, WorkerId

REST_S = 600.0
"""How long such a worker is not asked again."""


class SliceRefusals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[WorkerId, float] = {}

    def takes(self, worker: WorkerId) -> bool:
        """As far as is known."""
        return not self._until or self._clock() >= self._until.get(worker, 0.0)

    def refused(self, worker: WorkerId) -> None:
        now = self._clock()
        self._until = {w: until for w, until in self._until.items() if until > now}
        self._until[worker] = now + REST_S

    def forget(self, worker: WorkerId) -> None:
        self._until.pop(worker, None)
