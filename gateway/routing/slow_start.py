"""Scores while a worker starts slowly after its return: it gets a growing part of its fair share, whatever
the policy. A price on it would not do that: with everybody idle any price is too high, and it gets nothing.

One that has had its part ranks behind all others: who can go nowhere else, or not in time, still goes there.
So does who would find nowhere else what it holds: that costs the fleet more than its caution is worth. Its
score then counts as if it worked at its part of its speed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.guards import Guards
from gateway.types import WorkerId

BEHIND_ALL = float("inf")


def slowed(
    scores: list[float], workers: Sequence[WorkerId], matched: Sequence[int], guards: Guards, now: float
) -> tuple[list[float], tuple[WorkerId, ...]]:
    """(scores, who was put behind all others); scores, workers and matched tokens are parallel."""
    held = [guards.held_back(worker, now) for worker in workers]
    if all(held) or not any(held):
        return scores, ()
    elsewhere = max(tokens for tokens, back in zip(matched, held, strict=True) if not back)
    slowed = list(scores)
    behind: list[WorkerId] = []
    for i, worker in enumerate(workers):
        if not held[i]:
            continue
        if matched[i] > elsewhere:
            slowed[i] = max(scores[i], scores[i] / guards.slow_start(worker, now))
        else:
            slowed[i] = BEHIND_ALL
            behind.append(worker)
    return slowed, tuple(behind)
