"""A session always goes to the same worker, whatever its load; a request without one goes to the least busy.

By rendezvous hashing (Thaler and Ravishankar 1998): every worker is hashed together with the session, the
smallest hash wins, so that a worker's loss moves its own sessions only. It stands for the session-header
routing of today's gateways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape


@dataclass(slots=True)
class SessionAffinity:
    name: str = "session_affinity"

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        if not request.session:
            return [float(load.all_requests) for load in loads]
        return [float(xxh3_64_intdigest(f"{request.session}\x1f{load.worker}".encode())) for load in loads]
