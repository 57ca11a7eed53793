"""Additive form with softmax sampling.

    cost = overlap_weight × prefill blocks + decode blocks, both as they would be with the request there

At temperature 0 the lowest cost wins. Above, a worker is drawn with probability softmax(−cost / temperature),
costs scaled by their spread to 0…1 first.

Source: the KV router of NVIDIA Dynamo (docs/components/router), whose defaults are overlap weight 1 and
temperature 0. The draw is made by adding Gumbel noise to the scaled costs: the smallest of (cost/temperature
− Gumbel) is a sample of that softmax (Gumbel 1954; Yellott 1977).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import Weight
from gateway.routing.policy import RequestShape

_COLDEST = 1e-9
"""Below it the noise, 40 at most, decides among equals alone, and quotients grow beyond all floats."""


@dataclass(slots=True)
class Additive:
    random: Random = field(repr=False)
    overlap_weight: Weight = 1.0
    temperature: Weight = 0.0
    name: str = "additive"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        costs = self.costs(request, loads, matched_tokens)
        if self.temperature <= 0:
            return costs
        lowest = min(costs)
        spread = (max(costs) - lowest) or 1.0
        temperature = max(self.temperature, _COLDEST)
        return [(cost - lowest) / spread / temperature - self._gumbel() for cost in costs]

    def costs(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        """In blocks."""
        size = request.block_size
        return [
            self.overlap_weight * (load.all_waiting_tokens + request.prompt_tokens - matched) / size
            + (load.all_decoding_tokens + request.prompt_tokens) / size
            for load, matched in zip(loads, matched_tokens, strict=True)
        ]

    def _gumbel(self) -> float:
        return -math.log(-math.log(self.random.random() or 0.5))
