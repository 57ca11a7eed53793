"""A log of prompts over fleets of LRU caches: what the number of workers does to the hit rate.

No time passes here: requests come one after the other, and a worker's load is the work it was given so far.
That is enough to compare how prefixes spread, and says nothing of latency (benchmarks/replay does).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.types import BlockKey

Prompt: TypeAlias = Sequence[BlockKey]
Choose: TypeAlias = Callable[["Sequence[LruCache]", int, Prompt], int]
"""(workers, number of the request, its keys) → which worker takes it."""


class LruCache:
    """One worker's prefix cache. `work` counts the blocks it had to compute."""

    def __init__(self, blocks: int | None) -> None:
        """`blocks` None never forgets."""
        self._blocks = blocks
        self._held: OrderedDict[BlockKey, None] = OrderedDict()
        self.work = 0

    def match(self, keys: Prompt) -> int:
        """Leading blocks that it holds."""
        for depth, key in enumerate(keys):
            if key not in self._held:
                return depth
        return len(keys)

    def serve(self, keys: Prompt) -> int:
        """Takes the prompt; gives how many leading blocks it held."""
        hits = self.match(keys)
        self.work += len(keys) - hits
        # the head is the most recent: a cache gives up leaves before their parents
        for key in reversed(keys):
            self._held[key] = None
            self._held.move_to_end(key)
        while self._blocks is not None and len(self._held) > self._blocks:
            self._held.popitem(last=False)
        return hits


def by_prefix(workers: Sequence[LruCache], number: int, keys: Prompt) -> int:
    """Where all work ends soonest: what was given already, and what this prompt adds there."""
    return min(range(len(workers)), key=lambda i: workers[i].work + len(keys) - workers[i].match(keys))


def in_turn(workers: Sequence[LruCache], number: int, keys: Prompt) -> int:
    return number % len(workers)


@dataclass(frozen=True, slots=True)
class FleetRow:
    """Hit rates by block, 0…1, of fleets whose workers have `blocks_each`; None never forgets."""

    workers: int
    blocks_each: int | None
    by_prefix: float
    round_robin: float


def replay(prompts: Sequence[Prompt], workers: int, blocks: int | None, choose: Choose) -> float:
    """Share of all blocks that came from a cache."""
    fleet = [LruCache(blocks) for _ in range(workers)]
    hits = total = 0
    for number, keys in enumerate(prompts):
        hits += fleet[choose(fleet, number, keys)].serve(keys)
        total += len(keys)
    return hits / total if total else 0.0


def fleets(prompts: Sequence[Prompt], sizes: Sequence[int], blocks: int | None) -> tuple[FleetRow, ...]:
    return tuple(
        FleetRow(n, blocks, replay(prompts, n, blocks, by_prefix), replay(prompts, n, blocks, in_turn))
        for n in sizes
    )
