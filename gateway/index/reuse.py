"""How large a cache would have served which share of the prompts: reuse distances of a live stream of blocks.

The reuse distance of a block is the number of distinct other blocks asked for since it was last asked for; an
LRU cache of C blocks serves it if that is below C. So one histogram of distances gives the hit rate of every
cache size at once (Mattson et al., "Evaluation techniques for storage hierarchies", 1970). The stream is
sampled by block: one whose key falls under a threshold is followed, all others are not, and a distance
between sampled blocks is divided by the sampled share. The threshold falls as distinct blocks turn up, so
memory is bounded (fixed-size SHARDS: Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST'15,
with their adjustment for shares that are not sampled evenly). It falls too as samples pile up: what a few
thousand of them have settled, more would only make dearer, and this runs beside every request.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import eq

from gateway.types import BlockKey

_SPACE = 1 << 24
"""Keys are hashes already, so their lowest 24 bits are as good as a hash of their own."""
_MASK = _SPACE - 1
_PER_OCTAVE = 8
"""Histogram buckets between two powers of two: distances are kept within 9 %."""
_LONGEST = 65_536
"""Blocks of one prompt that count: a million tokens of 16 a block."""
_MANY = 64
"""From here on, sorting all times anew is cheaper than taking some out one by one."""
_FEWEST = 512
"""Blocks that are always followed, if there are so many."""


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """`buckets[i]` blocks were asked for again at a distance in [bound(i), bound(i + 1)). `blocks` were asked
    for in all, `distinct` different ones; whatever is in no bucket came for the first time."""

    blocks: float
    distinct: float
    buckets: tuple[float, ...]
    sampled_share: float

    @property
    def ceiling(self) -> float:
        """Hit rate of a cache that never forgets, 0…1."""
        return _share(sum(self.buckets), self.blocks)

    def hit_rate(self, capacity: float) -> float:
        """Share of blocks that one LRU cache of `capacity` blocks would have served, 0…1."""
        served = 0.0
        for i, count in enumerate(self.buckets):
            # distances are whole numbers; a bucket that the capacity cuts through counts in proportion
            low = math.ceil(bound(i))
            high = max(low + 1, math.ceil(bound(i + 1)))
            if capacity <= low:
                break
            served += count * min(1.0, (capacity - low) / (high - low))
        return _share(served, self.blocks)

    def capacity_for(self, hit_rate: float) -> int | None:
        """The smallest cache, in blocks, with at least that hit rate; None where no cache has it."""
        served = 0.0
        for i, count in enumerate(self.buckets):
            served += count
            if served >= hit_rate * self.blocks and count:
                return math.ceil(bound(i + 1))
        return 0 if hit_rate <= 0 else None


def bound(bucket: int) -> float:
    """The smallest distance that falls into `bucket`."""
    return float(2 ** (bucket / _PER_OCTAVE) - 1)


_EDGES = [2 ** ((bucket - 1e-9) / _PER_OCTAVE) - 1 for bucket in range(64 * _PER_OCTAVE)]
"""A hair below each bound, which keeps a distance that is exactly a bound out of the bucket below it."""


def bucket_of(distance: float) -> int:
    return bisect_right(_EDGES, distance) - 1


class ReuseSampler:
    """Feed it every prompt's block keys. Memory: at most `max_samples` keys, whatever the stream."""

    def __init__(self, max_samples: int = 8192, enough: int = 16_384) -> None:
        """Each time that sampled blocks were asked for `enough` times, half as many are followed from then
        on."""
        self._max_samples = max_samples
        self._threshold = _SPACE
        self._clock = 0
        self._last: dict[BlockKey, int] = {}
        """Sampled key → when it was last asked for."""
        self._times: list[int] = []
        """The same times, ascending: how many lie behind one of them is a distance."""
        self._largest: list[tuple[int, BlockKey]] = []
        """Heap of (−hash, key): who leaves first when the threshold falls."""
        self._fresh: list[BlockKey] = []
        """Those that are yet to come into it."""
        self._blocks = 0
        self._sampled = 0.0
        self._each = self._enough = enough
        self._buckets: list[float] = []

    def observe(self, keys: Sequence[BlockKey], held: int = 0) -> None:
        """One prompt, asked for as a whole. `held` leading blocks are in some cache of the fleet.

        A block that is held and was never asked for was generated: it was stored right behind the prompt that
        it continues, so it gets the distance of the block before it.
        """
        if len(keys) > _LONGEST:
            keys = keys[:_LONGEST]
        self._blocks += len(keys)
        sampled = self._sample(keys)
        if len(sampled) > self._max_samples:
            # a prompt with more blocks than may be followed at all: less are, before it costs anything
            self._drop_from(sorted(key & _MASK for key in sampled)[self._max_samples])
            sampled = self._sample(keys)
        self._sampled += _SPACE / self._threshold * len(sampled)
        lasts = list(map(self._last.get, sampled))
        row = _in_a_row(lasts)
        nearest: int | None = None
        if row and lasts[0] is not None:
            nearest = self._behind(lasts[0])
            self._count(nearest, row)
            nearest += row - 1
        places, rest = list(sampled.values())[row:], lasts[row:]
        if rest and (places[0] < held or rest.count(None) < len(rest)):  # else they are new, all of them
            for place, last in zip(places, rest, strict=True):
                if last is not None:
                    nearest = self._behind(last)
                elif place >= held or nearest is None:
                    continue
                self._count(nearest, 1)
        self._touch(list(sampled), lasts, row)
        if self._clock > self._enough or len(self._last) > self._max_samples:
            self._shrink()

    def curve(self) -> ReuseCurve:
        buckets = list(self._buckets)
        # hot blocks are either sampled or not; the error of the sampled count belongs to short distances
        if buckets:
            buckets[0] = max(0.0, buckets[0] + self._blocks - self._sampled)
        share = self._threshold / _SPACE
        return ReuseCurve(float(self._blocks), len(self._last) / share, tuple(buckets), share)

    def _sample(self, keys: Sequence[BlockKey]) -> dict[BlockKey, int]:
        """Those that are followed, with their place among `keys`."""
        threshold = self._threshold
        if threshold == _SPACE:
            return dict(zip(keys, range(len(keys)), strict=True))
        return {key: i for i, key in enumerate(keys) if key & _MASK < threshold}

    def _behind(self, last: int) -> int:
        """How many sampled blocks were asked for since."""
        return len(self._times) - bisect_right(self._times, last)

    def _count(self, nearest: int, blocks: int) -> None:
        """So many, the first with `nearest` sampled ones behind it, each of the others with one more."""
        weight, buckets = _SPACE / self._threshold, self._buckets
        while blocks:
            bucket = bisect_right(_EDGES, nearest * weight) - 1
            here = 1 if blocks == 1 else min(blocks, max(1, math.ceil(_EDGES[bucket + 1] / weight) - nearest))
            if bucket >= len(buckets):
                buckets += [0.0] * (bucket + 1 - len(buckets))
            buckets[bucket] += weight * here
            nearest, blocks = nearest + here, blocks - here

    def _touch(self, sampled: Sequence[BlockKey], lasts: Sequence[int | None], row: int) -> None:
        """The first block is the most recent of all: a cache gives up leaves before their parents. The first
        `row` of `lasts` lie side by side."""
        times, now, count = self._times, self._clock, len(sampled)
        if row and lasts[0] is not None:
            end = bisect_right(times, lasts[0])
            del times[end - row : end]
        rest = lasts[row:]
        if rest.count(None) == len(rest):
            self._fresh += sampled[row:]
        else:
            for key, last in zip(sampled[row:], rest, strict=True):
                if last is None:
                    self._fresh.append(key)
                else:
                    del times[bisect_left(times, last)]
        asked = range(now + 1, now + count + 1)
        times.extend(asked)
        self._last.update(zip(reversed(sampled), asked, strict=True))
        self._clock = now + count

    def _shrink(self) -> None:
        self._take_in()
        while len(self._last) > self._max_samples:  # seldom, and many at once
            self._drop_from(min(-self._largest[0][0], self._threshold * 3 // 4))
        if self._clock > self._enough:
            self._enough = self._clock + self._each
            if len(self._last) >= 2 * _FEWEST:
                self._drop_from(self._threshold // 2)

    def _take_in(self) -> None:
        for key in self._fresh:
            heappush(self._largest, (-(key & _MASK), key))
        self._fresh.clear()

    def _drop_from(self, threshold: int) -> None:
        """All of one hash leave together, or equal hashes would be sampled unevenly."""
        self._threshold = threshold
        self._take_in()
        gone = []
        while self._largest and -self._largest[0][0] >= threshold:
            _, key = heappop(self._largest)
            gone.append(self._last.pop(key))
        if len(gone) > _MANY:
            self._times = sorted(self._last.values())
            return
        for last in gone:
            del self._times[bisect_left(self._times, last)]


def _in_a_row(lasts: Sequence[int | None]) -> int:
    """How many from the first on were asked for side by side, as one prompt asks for its blocks."""
    known = lasts.index(None) if None in lasts else len(lasts)
    first = lasts[0] if known else None
    if first is None:
        return 0
    row = list(range(first, first - known, -1))
    if lasts[:known] == row:  # a prompt that goes on from another's beginning
        return known
    return list(map(eq, lasts, row)).index(False)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0
