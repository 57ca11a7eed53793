"""From scores to one worker."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from random import Random

from gateway.fleet.load import WorkerLoad

_COLDNESS_STEPS = 20
"""Occupancies within 5 % of a cache count as equal: a few blocks must not decide."""


def pick(
    scores: Sequence[float],
    loads: Sequence[WorkerLoad],
    matched_tokens: Sequence[int],
    random: Random,
) -> int:
    """Index of the lowest score. Among equals a prompt that nobody knows goes to the emptiest cache, where it
    pushes least out; then the fewest requests decide, then chance."""
    lowest = min(scores)
    tied = [i for i, score in enumerate(scores) if score == lowest]
    if len(tied) == 1:
        return tied[0]
    if not tied:
        # the first is no number, which nothing equals: what is none ranks last, and a request is not lost
        return pick([inf if isnan(score) else score for score in scores], loads, matched_tokens, random)
    if max([matched_tokens[i] for i in tied]) <= 0:
        tied = _smallest(tied, [int(loads[i].occupancy * _COLDNESS_STEPS) for i in tied])
    if len(tied) > 1:
        tied = _smallest(tied, [loads[i].requests + loads[i].peer_requests for i in tied])
    return tied[0] if len(tied) == 1 else random.choice(tied)


def _smallest(indices: list[int], values: Sequence[int]) -> list[int]:
    """Of `indices` those with the least of `values`, which is parallel to them."""
    least = min(values)
    return [i for i, value in zip(indices, values, strict=True) if value == least]
