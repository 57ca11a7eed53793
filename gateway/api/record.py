"""What is told of a request when it is over: the one thing that metrics and the access log are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gateway.routing.route import Outcome, Route
from gateway.routing.weighing import Weighing
from gateway.types import BlockKey, Usage, WorkerId
from gateway.upstream.headers import Headers
from gateway.upstream.proxy import Exchange

CLIENT_CLOSED = 499
"""Status of a request whose client left (nginx's number)."""


class Try(msgspec.Struct, frozen=True):
    worker: WorkerId
    outcome: Outcome


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, from the request's arrival. Tokens are our own counts but for `usage`. What has a
    default has it where no worker was found."""

    request_id: str
    endpoint: str
    model: str = ""
    """As routed. Its values are bounded, so it may be a label."""
    asked_model: str
    """As the client wrote it: anything."""
    worker: WorkerId | None = None
    """Of the last try."""
    status: int
    """What the client was sent; 499 where it left."""
    outcome: Outcome
    streamed: bool = False
    prompt_tokens: int = 0
    matched_tokens: int = 0
    reusable_tokens: int = 0
    usage: Usage | None = None
    routing_s: float
    """Spent on decisions, tokenising included."""
    ttft_s: float | None = None
    """To the first piece of a stream; None for other answers."""
    gap_mean_s: float | None = None
    gap_longest_s: float = 0.0
    pieces: int = 0
    """Events of the stream."""
    total_s: float
    tries: tuple[Try, ...] = ()
    slices: int = 0
    """Sent ahead of it: beginnings of its prompt."""
    stripped: tuple[str, ...] = ()
    """Fields and headers that the door took out."""
    error: str = ""
    """What went wrong, for a log; never a prompt."""
    key: str = ""
    """Id of the API key; never the key."""
    keys: Sequence[Sequence[BlockKey]] = ()
    """Per prompt, the keys of its cacheable blocks."""
    trace_id: str = ""
    """Of the W3C trace it belongs to, where that one is sampled."""
    reason: str = ""
    """Why this worker, as the router says it."""
    weighing: Weighing | None = None
    """All workers as the last decision saw them."""

    @property
    def prefilled(self) -> bool:
        """An engine computed its prompt. One that was turned away teaches nothing about prompts."""
        if self.worker is None or self.outcome in (Outcome.CLIENT_ERROR, Outcome.BUSY):
            return False
        return self.outcome is Outcome.OK or self.usage is not None or self.pieces > 0

    @property
    def tokens(self) -> int:
        """What it cost: the engine's count, or ours where the engine worked and did not say."""
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.completion_tokens
        if self.worker is None or (self.outcome not in _WORKED and not self.pieces):
            return 0
        return self.prompt_tokens + self.pieces


_WORKED = (Outcome.OK, Outcome.CANCELLED, Outcome.SHUT_DOWN)
"""An engine was at work, whether or not a piece of its answer was seen."""


class Recorder(Protocol):
    def record(self, record: RequestRecord) -> None:
        """Called exactly once a request, proxied or refused."""
        ...


class NoRecorder:
    def record(self, record: RequestRecord) -> None:
        """Forgets it."""


class Story(msgspec.Struct):
    """A request while it goes on: what its record will be made from."""

    request_id: str
    endpoint: str
    began: float
    asked_model: str = ""
    status: int = 0
    outcome: Outcome = Outcome.OK
    routing_s: float = 0.0
    route: Route | None = None
    exchange: Exchange | None = None
    tries: list[Try] = msgspec.field(default_factory=list)
    slices: int = 0
    stripped: tuple[str, ...] = ()
    error: str = ""
    key: str = ""
    trace_id: str = ""
    trace_headers: Headers = msgspec.field(default_factory=list)
    """What a worker is told of the trace, in place of the client's word."""

    def client_left(self) -> None:
        self.status, self.outcome = CLIENT_CLOSED, Outcome.CANCELLED

    def tried(self, route: Route, exchange: Exchange, outcome: Outcome) -> None:
        self.route, self.exchange = route, exchange
        self.status, self.outcome = exchange.status, outcome
        self.tries.append(Try(route.worker, outcome))
        if exchange.error is not None:
            self.error = exchange.error.message

    def end(self, now: float) -> RequestRecord:
        route, exchange = self.route, self.exchange
        if route is None or exchange is None:
            return self._unrouted(now)
        streamed = exchange.streamed
        first = exchange.first_byte_at if streamed else None
        return RequestRecord(
            request_id=self.request_id,
            endpoint=self.endpoint,
            model=route.model,
            asked_model=self.asked_model,
            worker=route.worker,
            status=self.status,
            outcome=self.outcome,
            streamed=streamed,
            prompt_tokens=route.prompt_tokens,
            matched_tokens=route.matched_tokens,
            reusable_tokens=route.reusable_tokens,
            usage=exchange.usage,
            routing_s=self.routing_s,
            ttft_s=first - self.began if first is not None else None,
            gap_mean_s=exchange.mean_gap if streamed else None,
            gap_longest_s=exchange.longest_gap if streamed else 0.0,
            pieces=exchange.pieces if streamed else 0,
            total_s=now - self.began,
            tries=tuple(self.tries),
            slices=self.slices,
            stripped=self.stripped,
            error=self.error,
            key=self.key,
            keys=route.keys,
            trace_id=self.trace_id,
            reason=route.reason,
            weighing=route.notes.weighing,
        )

    def _unrouted(self, now: float) -> RequestRecord:
        return RequestRecord(
            request_id=self.request_id,
            endpoint=self.endpoint,
            asked_model=self.asked_model,
            status=self.status,
            outcome=self.outcome,
            routing_s=self.routing_s,
            total_s=now - self.began,
            stripped=self.stripped,
            error=self.error,
            key=self.key,
            trace_id=self.trace_id,
        )
