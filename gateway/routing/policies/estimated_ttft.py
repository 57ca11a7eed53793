"""The default: who would answer first?

    score = (waiting + w × max(uncached, one block) + g × active requests) / prefill rate      [tokens]

Waiting prefill and the request's own uncached tokens are the time to its first token, in units of tokens of
an average worker. Two additions:

- w ≥ 1 prices what the request costs whoever comes after it. With w = 1 a burst of siblings opens a copy of
  their shared prefix on every idle worker, since computing it again takes no longer than waiting for it;
  with w = 2 they wait where it is being computed until the queue there is longer than twice what they save.
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
    request_tokens: float = 16.0
    name: str = "estimated_ttft"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        prompt, least = request.prompt_tokens, request.block_size
        weight, guard = self.work_weight, self.request_tokens
        return [
            (
                load.waiting_tokens
                + load.peer_waiting_tokens
                + weight * (prompt - matched if prompt - matched > least else least)
                + guard * (load.requests + load.peer_requests)
            )
            / load.prefill_rate
            for load, matched in zip(loads, matched_tokens, strict=True)
        ]
