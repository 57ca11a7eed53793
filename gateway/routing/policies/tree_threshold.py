"""Threshold routing over a prefix tree.

- Is the fleet out of balance (busiest − idlest > `abs_threshold` requests and busiest > `rel_threshold` ×
  idlest)? Then the fewest requests win, for everybody.
- Else, does the best match cover more than `cache_threshold` of the prompt? Then the best match wins.
- Else the worker with the smallest tree.

Source: the cache-aware policy of the SGLang router (sgl-router), defaults 0.3 / 64 / 1.5. There a tree of
characters, fed by the router's own decisions, stands for each worker's cache. Here the matches are our
index's, in tokens, so the baseline sees more truth than the original does; a tree grows with each decision
by what did not match, as there. It is not cut: there 2^26 characters a worker are kept, more than a run of
the study brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import Limit, Weight
from gateway.routing.policy import RequestShape
from gateway.types import WorkerId

_KNOWN = 4096
"""Workers whose trees are kept; of more those go that were not among the candidates last."""


@dataclass(slots=True)
class TreeThreshold:
    cache_threshold: Weight = 0.3
    abs_threshold: Limit = 64
    rel_threshold: Weight = 1.5
    name: str = "tree_threshold"
    _trees: dict[WorkerId, int] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Tokens by worker."""

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        requests = [load.all_requests for load in loads]
        most, least = max(requests), min(requests)
        if most - least > self.abs_threshold and most > self.rel_threshold * least:
            return [float(count) for count in requests]
        if max(matched_tokens) > self.cache_threshold * request.prompt_tokens:
            return [float(-matched) for matched in matched_tokens]
        trees = self._trees
        return [float(trees.get(load.worker, 0)) for load in loads]

    def chosen(
        self,
        request: RequestShape,
        loads: Sequence[WorkerLoad],
        matched_tokens: Sequence[int],
        index: int,
    ) -> None:
        trees, worker = self._trees, loads[index].worker
        if worker not in trees and len(trees) >= _KNOWN:
            here = {load.worker for load in loads}
            self._trees = trees = {known: size for known, size in trees.items() if known in here}
        trees[worker] = trees.get(worker, 0) + request.prompt_tokens - matched_tokens[index]
