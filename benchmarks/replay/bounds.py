"""What no router can beat, with any number of caches of any size, whatever it knows and however it schedules.

No request's first token comes earlier than on an idle engine that finds whatever anybody can have computed
(`benchmarks/replay/least.py`). What holds for each of n requests holds for every quantile of them too, if
none is refused. Queues are left out, so the bound is not tight where prefill is short; where it equals the
floor, the floor is the bound.

A next turn waits for an answer, so the sooner answers come, the more is asked in a second. If every answer
takes no longer than alone on an engine, nobody's turn comes earlier, whoever routes: that bounds goodput.

Balance has no such bound, since a router may move what it likes at a price; but it has three marks, below.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from benchmarks.replay.content import Content
from benchmarks.replay.least import least_and_asked
from benchmarks.replay.outcome import quantile
from workers.timing import Timing

P99_OF_FLOOR = 1.05
"""The target: the 99th percentile at most so many times the floor's."""


@dataclass(frozen=True, slots=True)
class Bounds:
    least_s: Sequence[float]
    """Of every request, the shortest first."""
    ttft_p50_s: float
    ttft_p99_s: float
    goodput_rps: float
    """As `outcome.summarise` counts it."""
    balance_as_they_come: float
    """Busiest/mean of prefilled tokens where nobody leaves the worker that it began on, no queue and no cache
    has a limit, and each goes to whoever has least of all that have begun, with all that these will bring."""
    balance_sorted: float
    """The same where the largest go first, as if all were known beforehand (Graham 1969)."""
    balance_unknown: float
    """The same where nothing is known: each goes to whoever has prefilled least by then."""

    def later_than(self, seconds: float) -> int:
        """How many requests get their first token later than that, whoever routes."""
        return len(self.least_s) - bisect_right(self.least_s, seconds)


def bounds(
    content: Content, timings: Sequence[Timing], speed: float, slo_ttft_s: float, workers: int
) -> Bounds:
    """`timings` are those of the fleet's kinds of engines, `speed` divides the trace's own times."""
    seconds, asked = least_and_asked(content, timings, speed)
    late_starts = sorted(
        when
        for when, least, request in zip(asked, seconds, content.trace.requests, strict=True)
        if least > slo_ttft_s and request.parent is None
    )
    least = sorted(seconds)
    sizes = session_tokens(content)
    return Bounds(
        least,
        quantile(least, 0.5),
        quantile(least, 0.99),
        most_goodput(sorted(asked), late_starts),
        balance(sizes, workers),
        balance(sorted(sizes, reverse=True), workers),
        balance_unknown(content, workers),
    )


def most_goodput(asked: Sequence[float], late_starts: Sequence[float]) -> float:
    """Requests a second. `asked` are the earliest times of all requests, sorted; `late_starts` those of first
    turns, which no router moves, that cannot be in time; sorted too.

    Goodput is what is good among the first nine tenths of all arrivals, over the time in which these come.
    Since nobody comes earlier than in `asked`, that time is no shorter than there; and whenever it ends, no
    more can have come than there.
    """
    first, nearly = asked[0], quantile(asked, 0.9)
    if nearly <= first:
        return 0.0
    ends = asked[bisect_left(asked, nearly) :]
    return max((bisect_right(asked, end) - bisect_right(late_starts, end)) / (end - first) for end in ends)


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


def balance_unknown(content: Content, workers: int) -> float:
    """Largest over mean of prefilled tokens, sessions begun where least was prefilled before; in the trace's
    order, without queues, no cache having a limit."""
    given = [0] * workers
    held: list[set[tuple[int, int]]] = [set() for _ in given]
    worker_of: list[int] = []
    for number, request in enumerate(content.trace.requests):
        parent = request.parent
        worker = given.index(min(given)) if parent is None else worker_of[parent]
        worker_of.append(worker)
        names, servable = content.line_blocks(number)
        found = sum(1 for _ in takewhile(held[worker].__contains__, names[:servable]))
        given[worker] += request.input_tokens - found * content.block_size
        held[worker].update(names)
    return max(given) * workers / max(1, sum(given))


def balance(sizes: Sequence[int], workers: int) -> float:
    """Largest over mean, each size in turn put where there is least."""
    given = [0] * workers
    for size in sizes:
        given[given.index(min(given))] += size
    return max(given) * workers / max(1, sum(given))
