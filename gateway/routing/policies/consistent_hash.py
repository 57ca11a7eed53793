"""Consistent hashing with bounded loads: a key walks the ring clockwise to the first worker below the bound.

    bound = ⌈load_factor × (requests in flight in all + 1) / workers⌉

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016), load factor 1.25.
The key is the caller's session, or else the prompt's first `prefix_blocks` blocks; a prompt without either
goes to the least busy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from xxhash import xxh3_64_intdigest

from gateway.fleet.load import WorkerLoad
from gateway.routing.policies.parameters import AtLeast, Count
from gateway.routing.policy import RequestShape
from gateway.types import WorkerId


@dataclass(slots=True)
class ConsistentHash:
    load_factor: Annotated[float, AtLeast(1)] = 1.25
    prefix_blocks: Count = 1
    points: Count = 100
    """Places of each worker on the ring."""
    name: str = "consistent_hash"
    _members: tuple[WorkerId, ...] = field(default=(), init=False, repr=False)
    _ring: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)
    """(place, index of its worker among the members), sorted."""

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        place = self._place(request)
        if place is None:
            return [float(load.all_requests) for load in loads]
        total = sum(load.all_requests for load in loads)
        bound = math.ceil(self.load_factor * (total + 1) / len(loads))
        scores = [0.0] * len(loads)
        for steps, index in enumerate(self._walk(place, loads)):
            # those at the bound stay behind all the others, for a fleet where everyone is
            scores[index] = float(steps if loads[index].all_requests < bound else steps + len(loads))
        return scores

    def _place(self, request: RequestShape) -> int | None:
        if request.session:
            return xxh3_64_intdigest(request.session.encode())
        if not request.keys:
            return None
        return request.keys[min(self.prefix_blocks, len(request.keys)) - 1]

    def _walk(self, place: int, loads: Sequence[WorkerLoad]) -> list[int]:
        """Indices of the workers in the order in which they are met clockwise from `place`."""
        members = tuple(load.worker for load in loads)
        if members != self._members:
            self._members, self._ring = members, self._build(members)
        start = bisect_right(self._ring, (place, len(members)))
        met: dict[int, None] = {}
        for step in range(len(self._ring)):
            met.setdefault(self._ring[(start + step) % len(self._ring)][1])
            if len(met) == len(members):
                break
        return list(met)

    def _build(self, members: tuple[WorkerId, ...]) -> list[tuple[int, int]]:
        return sorted(
            (xxh3_64_intdigest(f"{worker}\x1f{point}".encode()), index)
            for index, worker in enumerate(members)
            for point in range(self.points)
        )
