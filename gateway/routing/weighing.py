"""What a decision knows, laid out: the same for deciding and for explaining."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.fleet.load import WorkerLoad
from gateway.fleet.pool import Target
from gateway.fleet.worker import Worker
from gateway.routing.candidates import Refusal
from gateway.routing.keys import PromptKeys
from gateway.routing.media import Marks
from gateway.routing.policy import Policy, RequestShape
from gateway.routing.table import Slot
from gateway.types import BlockKey, CacheScope, Reason, WorkerId


class Reading(msgspec.Struct, frozen=True):
    """A request as the router sees it: whom it may concern, its tokens and their keys."""

    asked: str
    """The model name as the request gives it."""
    target: Target
    scope: CacheScope
    prompts: list[PromptKeys]
    keys: list[list[BlockKey]]
    """By prompt, those that may come from a cache."""
    shape: RequestShape
    encoder: str
    """Which source its tokens come from; empty where there is none."""
    exact: bool
    """Its tokens are the engine's own, all of them."""
    comparable: bool = True
    """They are, as far as they go: before the first medium."""
    media: Marks = ()
    not_tokenised: str = ""
    """Why there are no tokens, in words; empty where there are."""
    whole: bool = False
    """Its prompt can't go in slices."""
    skips_cache: bool = False
    """Its prompt is computed whole, whatever is cached of it."""
    bound_to: WorkerId | None = None
    """The one worker that can answer it, while that is there."""

    @property
    def pool(self) -> str:
        """Requests of one pool may go to the same workers."""
        return f"{self.scope.model}:{self.scope.adapter}" if self.scope.adapter else self.scope.model

    @property
    def prompt_tokens(self) -> int:
        return self.shape.prompt_tokens


class Weighing(msgspec.Struct, frozen=True):
    """All workers of the target at one moment. `candidates`, `loads`, `matched` and `scores` are parallel."""

    workers: tuple[Worker, ...]
    candidates: list[Worker]
    loads: list[WorkerLoad]
    matched: list[int]
    scores: list[float]
    refusals: Mapping[WorkerId, Refusal]
    matches: Mapping[WorkerId, int]
    """Tokens that each worker would serve from its cache, those who may not take it included."""
    slot: Slot
    winner: int | None
    by_media: bool = False
    """The winner should serve more from its cache than can be promised."""
    last_resort: bool = False
    """Nobody is trusted; the candidates are those to ask all the same."""
    behind: tuple[WorkerId, ...] = ()
    """Candidates that have come back and had their share for now: they rank behind all others."""

    @property
    def policy(self) -> Policy:
        return self.slot.policy

    @property
    def reusable(self) -> int:
        """The best match anywhere, in tokens."""
        return max(self.matches.values(), default=0)

    @property
    def reason_unread(self) -> Reason:
        """The same where nothing is known of the tokens: ``unread``, unless something else spoke."""
        return self.reason if self.by_media or self.last_resort else "unread"

    @property
    def reason(self) -> Reason:
        """Why the winner: ``match`` (nobody holds more), ``load`` (another holds more and would answer
        later), ``media`` (it has prefilled the prompt's images or sounds), ``cold`` (nobody holds anything),
        ``only`` (no other candidate), ``last_resort`` (nobody is trusted)."""
        if self.last_resort:
            return "last_resort"
        if len(self.candidates) == 1:
            return "only"
        if self.by_media:
            return "media"
        if self.winner is None or not self.matches:
            return "cold"
        return "match" if self.matched[self.winner] >= max(self.matched) else "load"
