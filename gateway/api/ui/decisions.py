"""The last decisions, with what each of them knew. Shapes only: tokens are counted, prompts never kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.api.record import RequestRecord
from gateway.routing.explain import verdict
from gateway.routing.weighing import Weighing

KEPT = 200
_MOST_KEYS = 64
WORDS = {
    "match": "nobody holds more of it",
    "load": "another holds more, and would answer later",
    "cold": "nobody holds any of it",
    "media": "it has seen these images or sounds",
    "only": "no other candidate",
    "last_resort": "nobody is trusted; asked all the same",
    "unread": "its prompt could not be read",
}
_ROWS = 50
"""Workers that an explanation lists: the chosen one, the best, and those that were no candidates."""


class Decision(msgspec.Struct, frozen=True):
    """Kept as it came: rows are made for whoever looks, and most of the time nobody does."""

    number: int
    at: float
    """Seconds since 1970."""
    record: RequestRecord

    def row(self) -> dict[str, Any]:
        record, usage = self.record, self.record.usage
        return {
            "number": self.number,
            "at": self.at,
            "endpoint": record.endpoint,
            "model": record.model,
            "worker": record.worker,
            "reason": record.reason,
            "why": WORDS.get(record.reason, ""),
            "prompt_tokens": record.prompt_tokens,
            "reusable_tokens": record.reusable_tokens,
            "matched_tokens": record.matched_tokens,
            "cached_tokens": None if usage is None else usage.cached_tokens,
            "tries": len(record.tries),
            "outcome": record.outcome.value,
            "status": record.status,
            "routing_s": record.routing_s,
            "ttft_s": record.ttft_s,
            "total_s": record.total_s,
        }


class Decisions:
    """A recorder of requests."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since 1970."""
        self._wall = wall
        self._kept: deque[Decision] = deque(maxlen=KEPT)
        self._number = 0

    def record(self, record: RequestRecord) -> None:
        self._number += 1
        if sum(map(len, record.keys)) > _MOST_KEYS:
            record = msgspec.structs.replace(record, keys=())  # hundreds of long prompts' keys are megabytes
        self._kept.append(Decision(self._number, self._wall(), record))

    def since(self, number: int) -> list[dict[str, Any]]:
        """Those after `number`, oldest first."""
        return [decision.row() for decision in self._kept if decision.number > number]

    def explain(self, number: int) -> dict[str, Any] | None:
        """One decision and every worker as it saw it, best first; None where it is no longer kept."""
        for decision in self._kept:
            if decision.number == number:
                row, weighing = decision.row(), decision.record.weighing
                workers = [] if weighing is None else _workers(weighing, row)
                policy = "" if weighing is None else weighing.policy.name
                return {**row, "policy": policy, "workers": workers[:_ROWS], "all": len(workers)}
        return None


def _workers(weighing: Weighing, row: dict[str, Any]) -> list[dict[str, Any]]:
    places = {worker.id: i for i, worker in enumerate(weighing.candidates)}
    rows = []
    for worker in weighing.workers:
        place = places.get(worker.id)
        matched = weighing.matches.get(worker.id, 0)
        score = weighing.scores[place] if place is not None else math.inf
        rows.append(
            {
                "worker": worker.id,
                "matched_tokens": matched,
                "uncached_tokens": max(0, row["prompt_tokens"] - matched),
                "score": score if math.isfinite(score) else None,
                "chosen": place is not None and place == weighing.winner,
                "verdict": verdict(worker, place, weighing),
            }
        )
    return sorted(rows, key=lambda r: (not r["chosen"], r["score"] is None, r["score"] or 0.0))
