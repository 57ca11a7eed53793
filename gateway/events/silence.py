"""Notices an engine that works but tells nothing, which would otherwise look like an empty cache forever."""

from __future__ import annotations

PATIENCE = 30.0
MIN_ANSWERS = 3


class SilenceWatch:
    """Silent: `min_answers` answers that must have filled blocks, `patience` seconds since the first of them,
    and no event.

    Events of a request come while it runs, often long before its answer ends: an answer counts only where
    nothing was heard since its request came. All times are seconds of one clock.
    """

    def __init__(self, patience: float = PATIENCE, min_answers: int = MIN_ANSWERS) -> None:
        self._patience = patience
        self._min_answers = min_answers
        self._heard = float("-inf")
        self._since: float | None = None
        self._answers = 0

    def answered(self, came: float, now: float) -> None:
        """The engine answered a request, here since `came`, that left at least one new full block behind."""
        if came <= self._heard:
            return
        if self._since is None:
            self._since = now
        self._answers += 1

    def heard(self, now: float) -> None:
        """An event came."""
        self._heard = now
        self._since = None
        self._answers = 0

    def silent(self, now: float) -> bool:
        return (
            self._since is not None
            and self._answers >= self._min_answers
            and now - self._since >= self._patience
        )
