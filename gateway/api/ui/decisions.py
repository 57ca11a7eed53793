"""The last decisions, with what each of them knew. Shapes only: tokens are counted, prompts never kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.api.record import RequestRecord
from gateway.routing.explain import verdict
from gateway.routing.weighing import Weighing

KEPT = 200
WORDS = {
    "match": "nobody holds more of it",
    "load": "another holds more, and would answer later",
    "cold": "nobody holds any of it",
    "media": "it has seen these images or sounds",
    "only": "no other candidate",
    "unread": "its prompt could not be read",
}
_ROWS = 50
"""Workers that an explanation lists: the chosen one, the best, and those that were no candidates."""


@dataclass(frozen=True, slots=True)
class Decision:
    number: int
    row: dict[str, Any]
    weighing: Weighing | None


class Decisions:
    """A recorder of requests."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since 1970."""
        self._wall = wall
        self._kept: deque[Decision] = deque(maxlen=KEPT)
        self._number = 0

    def record(self, record: RequestRecord) -> None:
        self._number += 1
        usage = record.usage
        row = {
            "number": self._number,
            "at": self._wall(),
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
        self._kept.append(Decision(self._number, row, record.weighing))

    def since(self, number: int) -> list[dict[str, Any]]:
        """Those after `number`, oldest first."""
        return [decision.row for decision in self._kept if decision.number > number]

    def explain(self, number: int) -> dict[str, Any] | None:
        """One decision and every worker as it saw it, best first; None where it is no longer kept."""
        for decision in self._kept:
            if decision.number == number:
                workers = [] if decision.weighing is None else _workers(decision.weighing, decision.row)
                policy = "" if decision.weighing is None else decision.weighing.policy.name
                return {**decision.row, "policy": policy, "workers": workers[:_ROWS], "all": len(workers)}
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
