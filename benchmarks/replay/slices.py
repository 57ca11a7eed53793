"""Prompts that go to their worker in slices (gateway.routing.slicing), in virtual time: what
`gateway.api.slices` does with tasks and a clock.

Of one replica: for whom a prompt yields are the requests of the same one, for of the others' it knows no
more than their sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.replay.engines import Timeline
from gateway.routing.route import Route
from gateway.routing.slicing import Plan

Send = Callable[[int, int | None, float], None]
"""Request, tokens of its beginning (None: the whole of it), now."""


@dataclass(slots=True)
class Yielding:
    """One prompt on its way."""

    number: int
    worker: int
    plan: Plan
    began: float
    done: int
    route: Route
    computed: int = 0
    """Tokens that its slices took."""
    under_way: bool = False
    whole: bool = False
    """It has yielded enough, or the engine keeps nothing of it: the rest goes in one piece."""
    followers: list[tuple[int, int]] = field(default_factory=list)
    """Requests that were promised so many of its tokens."""

    def go_whole(self) -> None:
        self.whole = True
        self.route.lease.yield_no_more(self.plan.prompt_tokens - self.done)

    def owes(self, route: Route) -> bool:
        """As `gateway.api.slices.SlicedPrompt` does."""
        keys, own, unit = route.keys[0], self.route.keys[0], route.notes.unit
        blocks = min(route.matched_tokens // unit, len(own))
        if blocks * unit <= self.done or blocks <= route.notes.held_blocks:
            return False
        return keys[blocks - 1] == own[blocks - 1]


@dataclass(slots=True)
class Queue:
    """At one worker."""

    yielding: deque[Yielding] = field(default_factory=deque)
    """The first of them is being sent."""
    others: set[int] = field(default_factory=set)
    """Requests in one piece that have no first token yet."""


class SlicedPrompts:
    def __init__(self, workers: int, timeline: Timeline, send: Send) -> None:
        self._queues = [Queue() for _ in range(workers)]
        self._by_number: dict[int, Yielding] = {}
        self._timeline = timeline
        self._send = send

    def whole(self, number: int, worker: int, route: Route, now: float) -> bool:
        """Another request is asked, in one piece. False: not at once, for it follows one in slices."""
        if self._follows(number, worker, route):
            return False
        self._queues[worker].others.add(number)
        self._send(number, None, now)
        return True

    def begin(self, number: int, worker: int, plan: Plan, route: Route, now: float) -> None:
        one = Yielding(number, worker, plan, now, plan.cached_tokens, route)
        follows = self._follows(number, worker, route)
        self._by_number[number] = one
        self._queues[worker].yielding.append(one)
        if not follows:
            self._start(one, now)

    def _follows(self, number: int, worker: int, route: Route) -> bool:
        ahead = next((one for one in self._queues[worker].yielding if one.owes(route)), None)
        if ahead is not None:
            ahead.followers.append((route.matched_tokens, number))
        return ahead is not None

    def _start(self, one: Yielding, now: float) -> None:
        one.began = now
        self._timeline.at(now + one.plan.hold_s(0.0, one.done), lambda then: self._enough(one, then))
        self._go_on(one.worker, now)

    def slice_over(self, number: int, tokens: int, cached: int, now: float) -> None:
        """The engine has the first `tokens` now, of which `cached` were there."""
        one = self._by_number[number]
        one.under_way = False
        one.computed += tokens - cached
        if one.done - cached >= 2 * one.plan.block:
            one.go_whole()  # somebody needed the room
        one.done = tokens
        self._let_go(one, tokens, now)
        left = one.plan.hold_s(now - one.began, tokens)
        if left > 0:
            self._timeline.at(now + left, lambda then: self._enough(one, then))
        else:
            one.go_whole()
        self._go_on(one.worker, now)

    def answered(self, number: int, worker: int, now: float) -> int:
        """Its first token came. Returns what its slices had computed before."""
        queue = self._queues[worker]
        queue.others.discard(number)
        one = self._by_number.pop(number, None)
        self._go_on(worker, now)
        return 0 if one is None else one.computed

    def _let_go(self, one: Yielding, done: int, now: float) -> None:
        """Those who were promised no more than that."""
        going = [number for tokens, number in one.followers if tokens <= done]
        one.followers = [(tokens, number) for tokens, number in one.followers if tokens > done]
        for number in going:
            if number in self._by_number:
                self._start(self._by_number[number], now)
                continue
            self._queues[one.worker].others.add(number)
            self._send(number, None, now)

    def _enough(self, one: Yielding, now: float) -> None:
        """It may have yielded as long as it has to."""
        if one.under_way or self._by_number.get(one.number) is not one:
            return
        if one.plan.hold_s(now - one.began, one.done) <= 1e-9:
            one.go_whole()
            self._ask(one, now)

    def _go_on(self, worker: int, now: float) -> None:
        queue = self._queues[worker]
        if (
            queue.yielding
            and not queue.yielding[0].under_way
            and (queue.yielding[0].whole or not queue.others)
        ):
            self._ask(queue.yielding[0], now)

    def _ask(self, one: Yielding, now: float) -> None:
        one.under_way = True
        tokens = None if one.whole else one.plan.next_cut(one.done)
        self._send(one.number, tokens, now)
        if tokens is None:
            queue = self._queues[one.worker]
            queue.yielding.remove(one)
            queue.others.add(one.number)
            self._let_go(one, one.plan.prompt_tokens, now)
