"""Prefix first, behind a gate against imbalance.

- Do the busiest and the idlest differ by more than `gate` requests? Then the fewest requests win.
- Else, of the workers with a match and at most mean + `deviations` × σ requests, the longest match wins, and
  among equal matches the fewest requests.
- Without such a worker the fewest requests win.

Source: the prefix-cache routing of AIBrix (pkg/plugins/gateway/algorithms), defaults 8 requests and 1 σ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Annotated

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import Between, Limit
from gateway.routing.policies.ranking import ranks
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class PrefixGate:
    gate: Limit = 8
    deviations: Annotated[float, Between(-1000, 1000)] = 1.0
    """Below zero only those count that have fewer requests than most."""
    name: str = "prefix_gate"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        requests = [load.all_requests for load in loads]
        if max(requests) - min(requests) > self.gate:
            return [float(count) for count in requests]
        bound = fmean(requests) + self.deviations * pstdev(requests)
        usable = [m if count <= bound else 0 for m, count in zip(matched_tokens, requests, strict=True)]
        return ranks([(-matched, count) for matched, count in zip(usable, requests, strict=True)])
