"""What a log of requests says of prefixes: what a cache can reach, where prompts part, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateway.diagnosis.divergence import Divergence, divergence
from gateway.diagnosis.finding import percent
from gateway.diagnosis.fleet_replay import FleetRow, fleets
from gateway.diagnosis.request_log import LoggedPrompt
from gateway.diagnosis.traffic_rules import divergence_cause
from gateway.index.reuse import ReuseCurve, ReuseSampler

_SAMPLES = 65_536
_HEADS = 256
_MATTERS = 0.1


@dataclass(frozen=True, slots=True)
class Analysis:
    """Hit rates are by block, 0…1: the share of blocks that need no prefill."""

    prompts: int
    unread_lines: int
    tokens: int
    block_size: int
    blocks: int
    distinct_blocks: float
    distinct_estimated: bool
    """Counted on a sample, scaled."""
    achievable_hit_rate: float
    """Of one cache that never forgets."""
    hit_rate_by_blocks: tuple[tuple[int, float], ...]
    """Of one LRU cache of so many blocks."""
    blocks_needed: int
    """The smallest of these sizes within two points of what is achievable."""
    fleets: tuple[FleetRow, ...]
    divergence: Divergence
    advice: tuple[str, ...]


def analyse(
    prompts: Sequence[LoggedPrompt],
    unread: int,
    *,
    workers: Sequence[int],
    blocks_each: int | None,
    seed: int = 0,
) -> Analysis:
    """`blocks_each` is one worker's cache, for the comparison of fleets; None never forgets."""
    sampler = ReuseSampler(_SAMPLES)
    for prompt in prompts:
        sampler.observe(prompt.keys)
    curve = sampler.curve()
    rates = tuple((size, curve.hit_rate(size)) for size in _sizes(curve))
    needed = next((size for size, rate in rates if rate >= curve.ceiling - 0.02), rates[-1][0])
    heads = [prompt.head for prompt in prompts if prompt.head is not None]
    if len(heads) > _HEADS:
        chosen = sorted(Random(seed).sample(range(len(heads)), _HEADS))
        heads = [heads[i] for i in chosen]
    found = divergence(heads)
    rows = fleets([prompt.keys for prompt in prompts], workers, blocks_each)
    block_size = prompts[0].block_size if prompts else 0
    return Analysis(
        prompts=len(prompts),
        unread_lines=unread,
        tokens=sum(prompt.tokens for prompt in prompts),
        block_size=block_size,
        blocks=int(curve.blocks),
        distinct_blocks=curve.distinct,
        distinct_estimated=curve.sampled_share < 1,
        achievable_hit_rate=curve.ceiling,
        hit_rate_by_blocks=rates,
        blocks_needed=needed,
        fleets=rows,
        divergence=found,
        advice=tuple(_advice(curve, needed, block_size, rows, found)),
    )


def _sizes(curve: ReuseCurve) -> list[int]:
    sizes = [1]
    while sizes[-1] < curve.distinct:
        sizes.append(sizes[-1] * 2)
    return sizes


def _advice(
    curve: ReuseCurve, needed: int, block_size: int, rows: Sequence[FleetRow], found: Divergence
) -> list[str]:
    advice: list[str] = []
    broken = bool(found.kinds) and found.lost_share >= _MATTERS
    if broken:
        advice.append(
            f"{percent(found.lost_share)} of prompt tokens repeat, and no prefix cache can use them: "
            f"{divergence_cause(found)}; move what changes behind what stays"
        )
    if curve.ceiling < _MATTERS and broken:
        advice.append(
            f"as they are, a cache serves {percent(curve.ceiling)} of blocks at best: until what changes has "
            "moved, choose workers by load"
        )
    elif curve.ceiling < _MATTERS:
        advice.append(
            f"prompts share next to nothing ({percent(curve.ceiling)} at best): choose workers by load, and "
            "spend memory on batch size"
        )
    else:
        advice.append(
            f"a cache of {needed:,} blocks ({needed * block_size:,} tokens) in all reaches "
            f"{percent(curve.hit_rate(needed))} of blocks; more buys next to nothing"
        )
    gains = [row for row in rows if row.workers > 1 and row.by_prefix - row.round_robin >= _MATTERS]
    if gains:
        most = max(gains, key=lambda row: row.by_prefix - row.round_robin)
        advice.append(
            f"route by prefix: with {most.workers} workers {percent(most.by_prefix)} of blocks come from "
            f"cache, and {percent(most.round_robin)} where requests go round in turn"
        )
    return advice
