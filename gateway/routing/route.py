"""What a routing decision is, and how a request's end is told back to it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from gateway.errors import Unavailable
from gateway.fleet.load import Lease
from gateway.index.watch import Watch
from gateway.prompt.base import PromptRequest
from gateway.routing.caller import Caller
from gateway.routing.media import Marks
from gateway.routing.slicing import Sliced
from gateway.routing.weighing import Weighing
from gateway.types import BlockKey, Usage, WorkerId


class Notes(msgspec.Struct, frozen=True):
    """What the router itself needs to know again when the request ends."""

    probe: bool = False
    """It is the single request that a half-open breaker let through."""
    exact: bool = True
    """Its tokens are the engine's own, all of them, so that its length may be compared."""
    comparable: bool = True
    """They are, as far as they go, so that what came from the cache may be compared."""
    media: Marks = ()
    ahead_tokens: int = 0
    """Prefill that waited on the worker before it."""
    unit: int = 16
    """Tokens in one of its keys."""
    held_blocks: int = 0
    """Of a single prompt's keys, how many leading ones the worker was known to hold. What was promised beyond
    them rests on decisions alone: when it does not come true, that refutes nothing."""
    kept_back: int = 0
    """Tokens of one more block that the worker was known to hold and may not have for this prompt."""
    on_trust: int = 0
    """Tokens of the last block that was promised because others like it were delivered."""
    watch: Watch | None = None
    """Over the last of these: whether the worker's own word was that it went, before the answer came."""
    epoch: int = 0
    """In which of the worker's epochs that was (`IndexWriter.epoch`)."""
    placed: Sequence[Sequence[BlockKey]] = ()
    """The keys that it promised the index, per prompt."""
    placed_at: float = 0.0
    weighing: Weighing | None = None
    """All workers as the decision saw them, for whoever wants to know why."""
    otherwise: Unavailable | None = None
    """What the caller would have been told if nobody untrusted had been asked."""
    sliced: Sliced | None = None
    """How its prompt goes to the worker, where that is not in one piece."""


class Route(msgspec.Struct):
    """One decision. Its lease is already taken; whoever holds the route releases it, on every exit."""

    worker: WorkerId
    url: str
    """Base URL of the engine, without a trailing slash."""
    model: str
    """The name to send: the engine's own, where the client used an alias."""
    lease: Lease
    prompt_tokens: int
    matched_tokens: int
    """Promised: what the chosen worker should serve from its cache."""
    reusable_tokens: int
    """The best match anywhere in the fleet."""
    keys: Sequence[Sequence[BlockKey]]
    """Per prompt of the request, the keys of its cacheable blocks."""
    reason: str
    """Why this worker, in a word or two."""
    dp_rank: int | None = None
    """Which rank of the engine behind `url` is meant; None where it is not split into ranks."""
    notes: Notes = Notes()


_ANYBODY = Caller()


class Outcome(Enum):
    """How one try on one worker ended."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """A 4xx, passed through: neutral for the breaker."""
    BUSY = "busy"
    """429 or overloaded before the first byte: backpressure, neutral for the breaker."""
    UPSTREAM_ERROR = "upstream_error"
    """Refused, 5xx, not HTTP, or died in the middle."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The client left (499)."""
    SHUT_DOWN = "shut_down"
    """Cut off by our own end, when the grace for open answers was over: neutral."""
    INTERNAL = "internal_error"
    """A fault of our own: it says nothing about the worker."""


class RouterProtocol(Protocol):
    """What the hot path asks of a router."""

    async def route(
        self, request: PromptRequest, *, exclude: frozenset[WorkerId] = frozenset(), caller: Caller = _ANYBODY
    ) -> Route:
        """Choose a worker outside `exclude` and take its lease in the same step.

        Raises ModelNotFound (nobody serves it), Unavailable (nobody is healthy) or Overloaded (all are
        full, or all that are left are excluded).
        """
        ...

    def finish(
        self,
        route: Route,
        outcome: Outcome,
        usage: Usage | None,
        ttft: float | None,
        *,
        retry_after: float | None = None,
        blameless: bool = False,
    ) -> None:
        """Told once per route, before its lease is released: feedback for the index and the breaker.

        `ttft` is in seconds from the start of this try to the first piece of a stream; None where none came,
        and for an answer whose time says nothing of prefill: one in one piece, or to a prompt in slices.
        `retry_after` is how many seconds a busy worker asked to be left alone for. `blameless`: it was the
        client's own limit that ended it.
        """
        ...
