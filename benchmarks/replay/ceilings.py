"""How much of a trace's prompts any cache could have served, whoever routes: requests one after another in
order of arrival, every block there as soon as its request was asked.

All rates are weighted by tokens: cached blocks × block size over all prompt tokens.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from benchmarks.replay.content import Content


@dataclass(frozen=True, slots=True)
class Ceilings:
    infinite: float
    """One cache without bound."""
    pooled_lru: float
    """One cache as large as the fleet's caches together; the longest unused block goes first."""
    clairvoyant: float
    """The same size; what is used again the latest, or never, goes first (Belady, 1966)."""


def ceilings(content: Content, pooled_blocks: int) -> Ceilings:
    """`pooled_blocks` in blocks of the content's size."""
    lines = _numbered(content)
    prompt = sum(request.input_tokens for request in content.trace.requests)
    size = content.block_size
    hits = (infinite_hits(lines), lru_hits(lines, pooled_blocks), clairvoyant_hits(lines, pooled_blocks))
    return Ceilings(*(count * size / prompt for count in hits))


Line = tuple[list[int], int]
"""The blocks of one request, and how many of the first ones a cache may serve."""


def infinite_hits(lines: list[Line]) -> int:
    seen: set[int] = set()
    hits = 0
    for blocks, servable in lines:
        for block in blocks[:servable]:
            if block not in seen:
                break
            hits += 1
        seen.update(blocks)
    return hits


def lru_hits(lines: list[Line], capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks, servable in lines:
        for block in blocks[:servable]:
            if block not in cache:
                break
            hits += 1
        for block in reversed(blocks):  # the tail is the first to go
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def clairvoyant_hits(lines: list[Line], capacity: int) -> int:
    """A prefix is used whenever a longer one is, so what is used the latest is never the parent of what is
    used earlier, and evicting by next use keeps the cache closed under prefixes."""
    uses: dict[int, list[int]] = {}
    for number in range(len(lines) - 1, -1, -1):
        blocks, servable = lines[number]
        for block in blocks[:servable]:
            uses.setdefault(block, []).append(number)
    next_use: dict[int, int] = {}
    furthest: list[tuple[int, int]] = []
    hits = 0
    for number, (blocks, servable) in enumerate(lines):
        for block in blocks[:servable]:
            if block not in next_use:
                break
            hits += 1
        for block in blocks:
            later = uses.get(block, [])
            while later and later[-1] <= number:
                later.pop()
            if later:
                next_use[block] = later[-1]
                heapq.heappush(furthest, (-later[-1], block))
            else:
                next_use.pop(block, None)
        while len(next_use) > capacity:
            when, block = heapq.heappop(furthest)
            if next_use.get(block) == -when:
                del next_use[block]
    return hits


def _numbered(content: Content) -> list[Line]:
    numbers: dict[tuple[int, int], int] = {}
    lines: list[Line] = []
    for request in range(len(content.trace.requests)):
        names, servable = content.line_blocks(request)
        lines.append(([numbers.setdefault(name, len(numbers)) for name in names], servable))
    return lines
