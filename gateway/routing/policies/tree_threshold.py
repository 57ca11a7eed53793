"""Threshold routing over a prefix tree.

- Is the fleet out of balance (busiest − idlest > `abs_threshold` requests and busiest > `rel_threshold` ×
  idlest)? Then the fewest requests win, for everybody.
- Else, does the best match cover more than `cache_threshold` of the prompt? Then the best match wins.
- Else the worker with the smallest tree.

Source: the cache-aware policy of the SGLang router (sgl-router), defaults 0.3 / 64 / 1.5. There a tree of
characters, fed by the router's own decisions, stands for each worker's cache; here the matches are our
index's, in tokens, and the size of a tree is the number of blocks known there. So the baseline sees more
truth than the original does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class TreeThreshold:
    cache_threshold: float = 0.3
    abs_threshold: int = 64
    rel_threshold: float = 1.5
    name: str = "tree_threshold"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        requests = [load.all_requests for load in loads]
        most, least = max(requests), min(requests)
        if most - least > self.abs_threshold and most > self.rel_threshold * least:
            return [float(count) for count in requests]
        if max(matched_tokens) > self.cache_threshold * request.prompt_tokens:
            return [float(-matched) for matched in matched_tokens]
        return [float(load.cached_blocks) for load in loads]
