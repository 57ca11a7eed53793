"""Who asks: what the queue, the session policies and nobody else may know of a caller."""

from __future__ import annotations

import msgspec

from gateway.types import WorkerId


class Caller(msgspec.Struct, frozen=True):
    """`key` names an API key (never the key itself); all who have none share one."""

    key: str = ""
    weight: float = 1.0
    """Its share of a crowded fleet, against other keys' weights."""
    priority: int = 0
    """Lower goes first; every waiting request of a lower class goes before any of a higher."""
    session: str = ""
    """A stable name of its session, empty where there is none."""
    deadline_s: float | None = None
    """Seconds in which it wants its whole answer; None leaves it to the gateway's own bounds."""
    worker: WorkerId | None = None
    """The one that can answer, for it keeps what the request goes on with; any other where it has left."""


ANYBODY = Caller()
