"""Exploit or explore, by how much of the prompt is cached somewhere.

- Does the best match cover more than `exploit_above` of the prompt? Exploit: among the workers with that
  match, the lightest load wins.
- Else explore: the lowest load + eviction + prefill wins, in tokens: what it has in flight, what the request
  would push out of its cache, what it would have to prefill.

Source: the E2 policy of Preble, Srivatsa et al., "Preble: Efficient Distributed Prompt Scheduling for LLM
Serving", arXiv 2407.00023. There load is the work of the last three minutes, and an eviction is weighted by
how often the evicted was hit; here load is what is in flight now and an eviction weighs what it is long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import Weight
from gateway.routing.policies.ranking import ranks
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class Explore:
    exploit_above: Weight = 0.5
    name: str = "explore"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        best = max(matched_tokens)
        if best > self.exploit_above * request.prompt_tokens:
            pairs = zip(matched_tokens, loads, strict=True)
            return ranks(
                [(-matched, _in_flight(load)) if matched == best else (0, 0) for matched, load in pairs]
            )
        return [
            float(_in_flight(load) + _evicted(load, uncached, request.block_size) + uncached)
            for load, uncached in (
                (load, request.prompt_tokens - matched)
                for load, matched in zip(loads, matched_tokens, strict=True)
            )
        ]


def _in_flight(load: WorkerLoad) -> int:
    return load.all_waiting_tokens + load.all_decoding_tokens


def _evicted(load: WorkerLoad, uncached: int, block_size: int) -> int:
    """Tokens that must leave its cache to make room; none where its capacity is not known."""
    if not load.capacity_blocks:
        return 0
    room = (load.capacity_blocks - load.cached_blocks) * block_size
    return max(0, uncached - max(0, room))
