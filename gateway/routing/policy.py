"""The one protocol behind which every policy lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from gateway.fleet.load import WorkerLoad
from gateway.types import BlockKey


class RequestShape(msgspec.Struct, frozen=True):
    """What a policy may know of a request: sizes and names, never its text."""

    prompt_tokens: int
    keys: Sequence[BlockKey] = ()
    """Keys of the prompt's cacheable blocks; the first names its family."""
    max_tokens: int | None = None
    session: str = ""
    """A stable name of the caller's session (`user`, a session header), empty where there is none."""
    block_size: int = 16


class Policy(Protocol):
    """`score` gives one figure per candidate; the lowest wins and the router breaks ties at random.

    `loads` and `matched_tokens` are parallel and never empty. A policy keeps no state about requests in
    flight (leases do); what little it may keep (a turn counter, a learned rate) is its own.
    """

    name: str

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]: ...


@runtime_checkable
class Committing(Protocol):
    """A policy that wants to know what became of its scores. `score` alone may be asked any number of times
    (to explain, to shadow); only a choice that was acted on is told here, `index` being the chosen one."""

    def chosen(
        self,
        request: RequestShape,
        loads: Sequence[WorkerLoad],
        matched_tokens: Sequence[int],
        index: int,
    ) -> None: ...
