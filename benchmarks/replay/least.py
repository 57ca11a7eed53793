"""The least time to each request's first token: that in which an idle engine computes that part of its prompt
which nobody can have computed before.

The first turn of a session is asked at a time that no router changes, so there it is known who can have been
before it: for whoever asks later it could only wait. When a next turn is asked depends on the router, so it
is taken to find whatever anybody computes who does not wait for its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.replay.content import Content
from workers.timing import Timing


def least_seconds(content: Content, timings: Sequence[Timing], speed: float) -> list[float]:
    """By request. In chunks it takes no less: arithmetic adds up, and every chunk reads the weights again."""
    return least_and_asked(content, timings, speed)[0]


def least_and_asked(
    content: Content, timings: Sequence[Timing], speed: float
) -> tuple[list[float], list[float]]:
    """By request its least seconds, and when it can be asked at the earliest: where everybody before it had
    those and an engine of its own. By induction over the turns no router is earlier, if it refuses nobody."""
    work = _Work(content, timings)
    found = [work.seconds(number, blocks) for number, blocks in enumerate(reusable_blocks(content))]
    asked = _earliest(content, work, found, speed)
    roots = _roots(content)
    holders = _Holders()
    for number in range(len(found)):
        holders.add(content.line_blocks(number)[0], roots[number], asked[number])
    for number, request in enumerate(content.trace.requests):
        if request.parent is None:
            found[number] = _first_turn(content, work, holders, number, asked[number])
    return found, _earliest(content, work, found, speed)


@dataclass(frozen=True, slots=True)
class _Work:
    content: Content
    timings: Sequence[Timing]

    def seconds(self, number: int, blocks: int) -> float:
        """What is left of the prompt behind so many leading blocks, on the fastest engine, if it is idle."""
        prompt, cached = self.content.trace.requests[number].input_tokens, blocks * self.content.block_size
        return min(timing.step_seconds([(prompt - cached, cached)]) for timing in self.timings)

    def answer_seconds(self, number: int) -> float:
        """From the first token to the last. Each reads all before it; a step's time is convex in what it
        reads, so at the mean context it is no more than the mean."""
        request = self.content.trace.requests[number]
        context = request.input_tokens + request.output_tokens // 2
        step = min(timing.decode_seconds(1, context) for timing in self.timings)
        return (request.output_tokens - 1) * step


def _earliest(content: Content, work: _Work, least: Sequence[float], speed: float) -> list[float]:
    """When each request can be asked at the earliest; of first turns when they are. `least` are bounds of the
    seconds to the first token."""
    asked: list[float] = []
    for request in content.trace.requests:
        when = request.arrival / speed
        if (parent := request.parent) is not None:
            answered = asked[parent] + least[parent] + work.answer_seconds(parent)
            when = max(when, answered + request.think_s / speed)
        asked.append(when)
    return asked


def _roots(content: Content) -> list[int]:
    """By request the first turn on whose answer it waits, directly or not: itself where it waits for none."""
    roots: list[int] = []
    for number, request in enumerate(content.trace.requests):
        roots.append(number if request.parent is None else roots[request.parent])
    return roots


class _Holders:
    """By block, who asks for it first, and who does of all that do not wait for the same first turn."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[float, int]] = {}
        self._second: dict[tuple[int, int], float] = {}

    def add(self, names: Sequence[tuple[int, int]], root: int, asked: float) -> None:
        for name in names:
            known = self._first.setdefault(name, (asked, root))
            if asked < known[0]:
                self._first[name] = (asked, root)
            if root != known[1]:
                later = max(asked, known[0])
                self._second[name] = min(later, self._second.get(name, later))

    def besides(self, name: tuple[int, int], root: int) -> float | None:
        """When somebody asks for it who does not wait for `root`; None where nobody does."""
        asked, owner = self._first[name]
        return asked if owner != root else self._second.get(name)


def _first_turn(content: Content, work: _Work, holders: _Holders, number: int, asked: float) -> float:
    """The best of what it can do: find those leading blocks that somebody may have computed by then, or wait
    until somebody asks for more of them. Who has a block has all before it, so waits grow with the blocks."""
    names, servable = content.line_blocks(number)
    best, wait = work.seconds(number, 0), 0.0
    for blocks, name in enumerate(names[:servable]):
        other = holders.besides(name, number)
        if other is None or other - asked >= best:
            return min(best, wait + work.seconds(number, blocks))
        if other - asked > wait:
            best, wait = min(best, wait + work.seconds(number, blocks)), other - asked
    return min(best, wait + work.seconds(number, servable))


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
