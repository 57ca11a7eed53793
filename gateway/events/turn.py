"""Whose turn it is to take a lease that is missing. No I/O.

A lease that ran out, or was given back, is anybody's. One that is missing before its time has vanished with
all that Redis had, and one that could not be renewed because Redis was away says nothing about its writer:
both are the writer's first, who alone has the books.
"""

from __future__ import annotations


class Turn:
    """Of one replica that mirrors one worker. Times in seconds."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: how long after Redis is back its writers come first."""
        self._grace_s = grace_s
        self._until: float | None = None
        """When the lease that was seen last runs out; None while none was seen."""
        self._away = False

    def stood(self, left_s: float, now: float) -> None:
        """Another's lease stands for so long."""
        self._until = now + left_s
        self._away = False

    def missing(self, now: float) -> None:
        """There is none, says Redis."""
        if self._away and self._until is not None:
            self._until = max(self._until, now + self._grace_s)
        self._away = False

    def away(self) -> None:
        """Redis did not answer."""
        self._away = True

    def waits(self, now: float) -> bool:
        """Only what was given back may be taken now."""
        return self._until is not None and (self._away or now < self._until)
