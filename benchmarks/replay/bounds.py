"""What no router can beat, with any number of caches of any size, whatever it knows and however it schedules.

A request's first token takes at least the time in which an idle engine computes that part of its prompt
which nobody can have computed before. What holds for each of n requests holds for every quantile of them too.
Queues are left out, so the bound is not tight where prefill is short; where it equals the floor, the floor is
the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.replay.content import Content
from benchmarks.replay.outcome import quantile
from workers.timing import Timing


@dataclass(frozen=True, slots=True)
class Bounds:
    ttft_p50_s: float
    ttft_p99_s: float
    good_share: float
    """Share of the requests that can have their first token in time at all."""


def bounds(content: Content, timings: Sequence[Timing], slo_ttft_s: float) -> Bounds:
    """`timings` are those of the fleet's kinds of engines."""
    least = sorted(least_seconds(content, timings))
    good = sum(1 for seconds in least if seconds <= slo_ttft_s)
    return Bounds(quantile(least, 0.5), quantile(least, 0.99), good / len(least))


def least_seconds(content: Content, timings: Sequence[Timing]) -> list[float]:
    """By request. In chunks it takes no less: arithmetic adds up, and every chunk reads the weights again."""
    found = []
    for number, blocks in enumerate(reusable_blocks(content)):
        prompt = content.trace.requests[number].input_tokens
        cached = blocks * content.block_size
        found.append(min(timing.step_seconds([(prompt - cached, cached)]) for timing in timings))
    return found


def reusable_blocks(content: Content) -> list[int]:
    """Of each prompt the leading blocks that another request may have computed before it was asked: any that
    does not itself wait for this one's answer, whenever it arrives."""
    requests = content.trace.requests
    parents = [-1 if request.parent is None else request.parent for request in requests]
    holder: dict[tuple[int, int], int] = {}
    shared: set[tuple[int, int]] = set()
    for number in range(len(requests)):
        names, _servable = content.line_blocks(number)
        for name in names:
            known = holder.setdefault(name, number)
            # the first holder in the trace's order has it to itself only if all others wait for its answer
            if known != number and name not in shared and not _waits_for(number, known, parents):
                shared.add(name)
    found = []
    for number in range(len(requests)):
        names, servable = content.line_blocks(number)
        count = 0
        for name in names[:servable]:
            if holder[name] == number and name not in shared:
                break
            count += 1
        found.append(count)
    return found


def _waits_for(number: int, ancestor: int, parents: Sequence[int]) -> bool:
    """Parents have smaller numbers than their children, and -1 is nobody's."""
    while number > ancestor:
        number = parents[number]
    return number == ancestor
