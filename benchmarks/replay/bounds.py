"""What no router can beat, with any number of caches of any size, whatever it knows and however it schedules.

A request's first token takes at least the time in which an idle engine computes that part of its prompt
which nobody can have computed before. What holds for each of n requests holds for every quantile of them too.
Queues are left out, so the bound is not tight where prefill is short; where it equals the floor, the floor is
the bound.

Balance has no such bound, since a router may move what it likes at a price; but it has two marks, below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from benchmarks.replay.content import Content
from benchmarks.replay.outcome import quantile
from workers.timing import Timing


@dataclass(frozen=True, slots=True)
class Bounds:
    ttft_p50_s: float
    ttft_p99_s: float
    good_share: float
    """Share of the requests that can have their first token in time at all."""
    balance_as_they_come: float
    """Busiest/mean of prefilled tokens where nobody leaves the worker that it began on, no queue and no cache
    has a limit, and each goes to whoever has least of all that have begun, with all that these will bring."""
    balance_sorted: float
    """The same where the largest go first, as if all were known beforehand (Graham 1969)."""


def bounds(content: Content, timings: Sequence[Timing], slo_ttft_s: float, workers: int) -> Bounds:
    """`timings` are those of the fleet's kinds of engines."""
    least = sorted(least_seconds(content, timings))
    good = sum(1 for seconds in least if seconds <= slo_ttft_s)
    sizes = session_tokens(content)
    return Bounds(
        quantile(least, 0.5),
        quantile(least, 0.99),
        good / len(least),
        balance(sizes, workers),
        balance(sorted(sizes, reverse=True), workers),
    )


def session_tokens(content: Content) -> list[int]:
    """By session, in the order in which they begin: what its worker prefills if all of it stays there."""
    held: list[set[tuple[int, int]]] = []
    sizes: list[int] = []
    session_of: list[int] = []
    for number, request in enumerate(content.trace.requests):
        if request.parent is None:
            session_of.append(len(sizes))
            sizes.append(0)
            held.append(set())
        else:
            session_of.append(session_of[request.parent])
        session = session_of[number]
        names, servable = content.line_blocks(number)
        found = sum(1 for _ in takewhile(held[session].__contains__, names[:servable]))
        sizes[session] += request.input_tokens - found * content.block_size
        held[session].update(names)
    return sizes


def balance(sizes: Sequence[int], workers: int) -> float:
    """Largest over mean, each size in turn put where there is least."""
    given = [0] * workers
    for size in sizes:
        given[given.index(min(given))] += size
    return max(given) * workers / max(1, sum(given))


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
