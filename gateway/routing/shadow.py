"""Shadow mode: two policies decide, one acts. Tells what switching would change before anybody switches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.fleet.load import WorkerLoad
from gateway.routing.observer import RoutingObserver
from gateway.routing.policy import Committing, Policy, RequestShape


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    decisions: int = 0
    differing: int = 0
    gain_tokens: float = 0.0
    """Prefill ahead of the request's first token, in tokens of an average worker: what the acting policy's
    choices cost more than the watching one's would have. Below zero the acting one is the better."""


@dataclass(slots=True)
class Shadow:
    """A policy to the router: scores are the acting one's alone. Choices are compared only where they were
    acted on, before their load is counted."""

    acting: Policy
    watching: Policy
    on_decision: Callable[[bool, float], None] | None = None
    """Told of every decision: do they agree, and the predicted gain in tokens."""
    name: str = field(default="", init=False)
    counts: ShadowCounts = field(default_factory=ShadowCounts, init=False)

    def __post_init__(self) -> None:
        self.name = self.acting.name

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        return self.acting.score(request, loads, matched_tokens)

    def chosen(
        self,
        request: RequestShape,
        loads: Sequence[WorkerLoad],
        matched_tokens: Sequence[int],
        index: int,
    ) -> None:
        scores = self.watching.score(request, loads, matched_tokens)
        # where it has no preference either, the acting one's choice is its choice too
        other = index if scores[index] == min(scores) else scores.index(min(scores))
        gain = _ahead(request, loads[index], matched_tokens[index]) - _ahead(
            request, loads[other], matched_tokens[other]
        )
        agrees = other == index
        self.counts = ShadowCounts(
            self.counts.decisions + 1,
            self.counts.differing + (not agrees),
            self.counts.gain_tokens + gain,
        )
        if self.on_decision is not None:
            self.on_decision(agrees, gain)
        for policy, choice in ((self.acting, index), (self.watching, other)):
            if isinstance(policy, Committing):
                policy.chosen(request, loads, matched_tokens, choice)


def watched(acting: Policy, watching: Policy, model: str, observer: RoutingObserver) -> Shadow:
    """`observer` hears of each decision, under `model`."""

    def tell(agrees: bool, gain: float) -> None:
        observer.shadowed(model, watching.name, agrees, gain)

    return Shadow(acting, watching, tell)


def _ahead(request: RequestShape, load: WorkerLoad, matched: int) -> float:
    return (load.all_waiting_tokens + max(0, request.prompt_tokens - matched)) / load.prefill_rate
