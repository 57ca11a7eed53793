"""The default: who would answer first?

    score = (waiting + w × max(uncached, one block) + m × overflow + g × active requests) / prefill rate

in tokens. Waiting prefill and the request's own uncached tokens are the time to its first token, in units of
tokens of an average worker. Three additions:

- w ≥ 1 prices what the request costs whoever comes after it. With w = 1 a burst of siblings opens a copy of
  their shared prefix on every idle worker, since computing it again takes no longer than waiting for it;
  with w = 2 they wait where it is being computed until the queue there is longer than twice what they save.
- overflow is by how much the contexts of all requests in flight there, this one's too, exceed the worker's
  cache. Whoever comes then waits for somebody's end and not for prefill, and meanwhile everything that is
  cached there and not in use gets evicted, what was promised to those in the queue included. 0 where the
  capacity is not known.
- g guards decode: each active request slows a step by about as much as a few tokens of prefill would, and
  among equal workers the one with fewer requests wins.

At least one block counts as uncached even at a full match (the last token is always computed), so no worker
ever looks free of charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class EstimatedTTFT:
    work_weight: float = 2.0
    memory_weight: float = 4.0
    request_tokens: float = 16.0
    name: str = "estimated_ttft"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        prompt, least = request.prompt_tokens, request.block_size
        weight, memory, guard = self.work_weight, self.memory_weight, self.request_tokens
        return [
            (
                load.waiting_tokens
                + load.peer_waiting_tokens
                + weight * (prompt - matched if prompt - matched > least else least)
                + (memory * overflow_tokens(load, request) if load.capacity_tokens else 0.0)
                + guard * (load.requests + load.peer_requests)
            )
            / load.prefill_rate
            for load, matched in zip(loads, matched_tokens, strict=True)
        ]


def overflow_tokens(load: WorkerLoad, request: RequestShape) -> int:
    """Tokens of context in flight that the cache has no room for."""
    over = load.context_tokens + load.peer_context_tokens + request.prompt_tokens - load.capacity_tokens
    return max(0, over - load.common_context(request.keys, request.block_size)) if over > 0 else 0
