"""Promised against delivered: what the engine says it served from cache corrects what the index believes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.index.base import IndexWriter
from gateway.routing.last_blocks import LastBlocks
from gateway.routing.observer import RoutingObserver
from gateway.routing.route import Route
from gateway.types import Usage, WorkerId

DRIFT_DECAY = 0.9
EMPTY_PROMISES = 5
"""Promises in a row delivered with nothing at all of what the worker was said to hold, and never said to have
given up, from which on its index counts as degraded."""


@dataclass(slots=True)
class WorkerDrift:
    """How promises to one worker came true. Tokens; `drift` is the decayed mean of the share that was
    promised and not delivered, 0…1."""

    promises: int = 0
    promised_tokens: int = 0
    short_tokens: int = 0
    extra_tokens: int = 0
    drift: float = 0.0
    empty_in_a_row: int = 0
    degraded: bool = False


@dataclass(slots=True)
class Feedback:
    index: IndexWriter
    observer: RoutingObserver
    last_blocks: LastBlocks
    _drifts: dict[WorkerId, WorkerDrift] = field(default_factory=dict)

    def drift(self, worker: WorkerId) -> WorkerDrift:
        return self._drifts.get(worker, WorkerDrift())

    def forget(self, worker: WorkerId) -> None:
        self._drifts.pop(worker, None)
        self.last_blocks.forget(worker)

    def judge(self, route: Route, usage: Usage) -> None:
        """One answer's usage. An engine that does not report cached tokens gets no verdict, nor does a body
        of several prompts: engines report the cached tokens of one of them only."""
        if route.notes.exact and route.prompt_tokens:
            self.observer.parity(route.model, route.prompt_tokens, usage.prompt_tokens)
        if usage.cached_tokens is None or len(route.keys) != 1:
            return
        delivered = _in_own_tokens(route, usage)
        self.observer.delivered(route.worker, route.matched_tokens, delivered)
        held, really = route.notes.held_blocks, delivered // route.notes.unit
        # a short cache gives up what waits for its turn, and says so: that breaks a promise, and no word
        gone = route.notes.watch is not None and route.notes.watch.gone
        self._count(route.worker, route.matched_tokens, delivered, blameless=gone or not held)
        if kept_back := route.notes.kept_back:
            self.last_blocks.told(route.worker, delivered >= route.matched_tokens + kept_back)
        if (on_trust := route.notes.on_trust) and route.matched_tokens - delivered == on_trust:
            self.last_blocks.told(route.worker, False)
            return  # it is held, and for prompts that go on otherwise
        # a worker that began anew meanwhile may hold what it did not have yet for this one
        if really < held and not gone and self.index.epoch(route.worker) == route.notes.epoch:
            self.index.refute(route.worker, route.keys[0][:held], really)

    def _count(self, worker: WorkerId, promised: int, delivered: int, *, blameless: bool) -> None:
        """`blameless`: what is missing contradicts nothing that the engine said."""
        drift = self._drifts.get(worker)
        if drift is None:
            drift = self._drifts[worker] = WorkerDrift()
        drift.extra_tokens += max(0, delivered - promised)
        if promised > 0:
            short = max(0, promised - delivered)
            drift.promises += 1
            drift.promised_tokens += promised
            drift.short_tokens += short
            drift.drift = DRIFT_DECAY * drift.drift + (1 - DRIFT_DECAY) * short / promised
            if not delivered and not blameless:
                drift.empty_in_a_row += 1
        if delivered:
            drift.empty_in_a_row = 0
        degraded = drift.empty_in_a_row >= EMPTY_PROMISES or (drift.degraded and not delivered)
        if degraded != drift.degraded:
            drift.degraded = degraded
            self.observer.degraded(worker, degraded)


def _in_own_tokens(route: Route, usage: Usage) -> int:
    """Delivered tokens in our own count. Where all of ours is an estimate, the share counts: a promise of a
    quarter of the prompt came true if a quarter was served. Half a block of rounding is forgiven."""
    cached = usage.cached_tokens or 0
    if route.notes.comparable or usage.prompt_tokens <= 0:
        return cached
    own = cached / usage.prompt_tokens * route.prompt_tokens
    unit = route.notes.unit
    return int((own + unit / 2) // unit) * unit
