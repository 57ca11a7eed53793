"""What each worker carries right now, and the lease that makes sure no count ever leaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.types import WorkerId


@dataclass(slots=True, eq=False)
class WorkerLoad:
    """Live load of one worker, in requests and tokens. Policies read it; only leases change it.

    The `peer_*` figures are what other replicas have sent there.
    """

    worker: WorkerId
    requests: int = 0
    """Leases held by this replica: reserved and not yet released."""
    waiting_tokens: int = 0
    """Uncached prompt tokens of requests that have not answered their first byte."""
    decoding_tokens: int = 0
    """Context tokens of requests that are decoding: what their attention reads."""
    peer_requests: int = 0
    peer_waiting_tokens: int = 0
    peer_decoding_tokens: int = 0
    max_requests: int | None = None
    """In-flight bound; a worker at it is not a candidate."""
    prefill_rate: float = 1.0
    """Relative prefill speed: 1.0 is the fleet's own measure, 2.0 prefills twice as fast."""
    cached_blocks: int = 0
    """Blocks the index knows there; for choosing where a stranger's prompt hurts least."""
    capacity_blocks: int = 0
    """Blocks the engine has in all; 0 where it is not known."""

    @property
    def all_requests(self) -> int:
        return self.requests + self.peer_requests

    @property
    def all_waiting_tokens(self) -> int:
        return self.waiting_tokens + self.peer_waiting_tokens

    @property
    def all_decoding_tokens(self) -> int:
        return self.decoding_tokens + self.peer_decoding_tokens

    @property
    def full(self) -> bool:
        return self.max_requests is not None and self.all_requests >= self.max_requests


@dataclass(slots=True, eq=False)
class Lease:
    """A reserved place on one worker. Taken in the same step as the choice, so that nobody chooses on a load
    that is already stale; `release` may be called from every exit, and counts once."""

    load: WorkerLoad
    uncached_tokens: int
    context_tokens: int
    _decoding: bool = field(default=False, init=False)
    _released: bool = field(default=False, init=False)

    @classmethod
    def take(cls, load: WorkerLoad, *, prompt_tokens: int, matched_tokens: int) -> Lease:
        uncached = max(0, prompt_tokens - matched_tokens)
        load.requests += 1
        load.waiting_tokens += uncached
        return cls(load, uncached, prompt_tokens)

    @property
    def worker(self) -> WorkerId:
        return self.load.worker

    @property
    def released(self) -> bool:
        return self._released

    def first_byte(self) -> None:
        """Prefill is over: the prompt stops waiting and starts to weigh on decode."""
        if self._decoding or self._released:
            return
        self._decoding = True
        self.load.waiting_tokens -= self.uncached_tokens
        self.load.decoding_tokens += self.context_tokens

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self.load.requests -= 1
        if self._decoding:
            self.load.decoding_tokens -= self.context_tokens
        else:
            self.load.waiting_tokens -= self.uncached_tokens
