"""How large a replay may be: what would take all memory, or hours to say nothing more, is refused before
anything is computed."""

from __future__ import annotations

from benchmarks.replay.cases import Case
from benchmarks.replay.content import Content

MOST_WORKERS = 4096
MOST_REPLICAS = 256
MOST_BLOCKS = 20_000_000
"""Of all workers together: with what is free, used and held of it a block takes some 140 bytes."""
MOST_WORDS = 50_000_000
"""Loads that one replica tells one other: of each time some 20 µs."""


def check_fleet(case: Case) -> None:
    """Raises ValueError, which says what is the most, and why."""
    if case.workers > MOST_WORKERS:
        raise ValueError(
            f"--workers: {case.workers:,} are too many, {MOST_WORKERS:,} are the most: "
            "each request is weighed at every one of them"
        )
    if case.replicas > MOST_REPLICAS:
        raise ValueError(
            f"--replicas: {case.replicas:,} are too many, {MOST_REPLICAS:,} are the most: "
            "each keeps an index of its own of what all workers hold"
        )
    if (blocks := case.workers * case.blocks_per_worker) > MOST_BLOCKS:
        raise ValueError(
            f"--blocks-per-worker: {case.workers:,} workers have {blocks:,} blocks, {MOST_BLOCKS:,} are the "
            "most: each takes some 140 bytes of memory, in every process of --jobs"
        )


def check_words(content: Content, case: Case) -> None:
    """Raises ValueError where replicas would spend hours with telling each other what they have in flight."""
    if not case.shared or case.replicas == 1:
        return
    seconds, interval = len(content.trace.requests) / case.rate, case.delays.load_s
    words = seconds / interval * case.replicas * (case.replicas - 1)
    if words > MOST_WORDS:
        raise ValueError(
            f"--replicas: each of {case.replicas:,} tells every other one its loads, in {seconds:,.0f} s "
            f"once in {interval:g}: {words:,.0f} times, {MOST_WORDS:,} are the most, at some 20 µs each; "
            "fewer --replicas, a longer --load-interval, a higher --rate or a --limit make it less"
        )
