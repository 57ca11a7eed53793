"""What the outside may watch of routing. Metrics implement it; the logic stays clean of them."""

from __future__ import annotations

from typing import Protocol

from gateway.types import WorkerId


class RoutingObserver(Protocol):
    def decided(self, model: str, policy: str, reason: str, seconds: float) -> None:
        """One decision that was acted on, and how long it took, tokenising included."""
        ...

    def refused(self, model: str, error: str) -> None:
        """No worker could be given: `error` names the exception's class."""
        ...

    def delivered(self, worker: WorkerId, promised: int, cached: int) -> None:
        """Tokens promised and tokens really served from cache, of one answer."""
        ...

    def parity(self, model: str, own: int, reported: int) -> None:
        """Prompt tokens as counted here and as the engine counted them."""
        ...

    def degraded(self, worker: WorkerId, degraded: bool) -> None:
        """Whether what the index says of this worker has stopped coming true."""
        ...

    def shadowed(self, model: str, policy: str, agrees: bool, gain_tokens: float) -> None:
        """What a shadow policy would have done; `gain_tokens` as in `gateway.routing.shadow`."""
        ...


class NullObserver:
    def decided(self, model: str, policy: str, reason: str, seconds: float) -> None: ...

    def refused(self, model: str, error: str) -> None: ...

    def delivered(self, worker: WorkerId, promised: int, cached: int) -> None: ...

    def parity(self, model: str, own: int, reported: int) -> None: ...

    def degraded(self, worker: WorkerId, degraded: bool) -> None: ...

    def shadowed(self, model: str, policy: str, agrees: bool, gain_tokens: float) -> None: ...
