"""Prompts that go to their worker in slices (gateway.routing.slicing), in virtual time: what
`gateway.api.slices` does with tasks and a clock.

First tokens show as they come, so nobody is held for an answer that shows late. Of one replica: for whom a
prompt yields are the requests of the same one, for of the others' it knows no more than their sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from benchmarks.replay.engines import Timeline
from gateway.routing.route import Route
from gateway.routing.slicing import Plan, owes

Send = Callable[[int, int | None, float], None]
"""Request, tokens of its beginning (None: the whole of it), now."""


@dataclass(slots=True)
class Yielding:
    """One prompt on its way."""

    number: int
    worker: int
    plan: Plan
    done: int
    route: Route
    began: float | None = None
    """When its turn came."""
    computed: int = 0
    """Tokens that its slices took."""
    under_way: bool = False
    whole: bool = False
    """It has yielded enough, or the engine keeps nothing of it: the rest goes in one piece."""
    followers: list[tuple[float, int]] = field(default_factory=list)
    """Requests that were promised so many of its tokens."""

    def since(self, now: float) -> float:
        return now if self.began is None else self.began

    def go_whole(self) -> None:
        self.whole = True
        self.route.lease.yield_no_more(self.plan.prompt_tokens - self.done)

    def owes(self, route: Route) -> bool:
        blocks = route.matched_tokens // route.notes.unit
        return owes(
            self.route.keys[0], self.done, route.keys[0], blocks, route.notes.held_blocks, route.notes.unit
        )


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
        queue = self._queues[worker]
        tokens: float = route.matched_tokens
        ahead = next((one for one in queue.yielding if one.owes(route)), None)
        if queue.yielding and route.lease.uncached_tokens > (last := queue.yielding[-1]).plan.rest_tokens:
            tokens, ahead = inf, last
        if ahead is not None:
            ahead.followers.append((tokens, number))
            return False
        queue.others.add(number)
        self._send(number, None, now)
        return True

    def begin(self, number: int, worker: int, plan: Plan, route: Route, now: float) -> None:
        one = self._by_number[number] = Yielding(number, worker, plan, plan.cached_tokens, route)
        self._queues[worker].yielding.append(one)
        self._go_on(worker, now)

    def slice_over(self, number: int, tokens: int, cached: int, now: float) -> None:
        """The engine has the first `tokens` now, of which `cached` were there."""
        one = self._by_number[number]
        one.under_way = False
        one.computed += tokens - cached
        if one.plan.room_taken(one.done, cached):
            one.go_whole()
        one.done = tokens
        self._let_go(one, tokens, now)
        left = one.plan.hold_s(now - one.since(now), tokens)
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

    def _let_go(self, one: Yielding, done: float, now: float) -> None:
        """Those who were promised no more than that."""
        going = [number for tokens, number in one.followers if tokens <= done]
        one.followers = [(tokens, number) for tokens, number in one.followers if tokens > done]
        for number in going:
            self._queues[one.worker].others.add(number)
            self._send(number, None, now)

    def _enough(self, one: Yielding, now: float) -> None:
        """It may have yielded as long as it has to."""
        if one.under_way or self._by_number.get(one.number) is not one:
            return
        if one.plan.hold_s(now - one.since(now), one.done) <= 1e-9:
            one.go_whole()
            self._ask(one, now)

    def _go_on(self, worker: int, now: float) -> None:
        queue = self._queues[worker]
        if not queue.yielding:
            return
        first = queue.yielding[0]
        if first.began is None:
            first.began = now
            self._timeline.at(
                now + first.plan.hold_s(0.0, first.done), lambda then: self._enough(first, then)
            )
        if not first.under_way and (first.whole or not queue.others):
            self._ask(first, now)

    def _ask(self, one: Yielding, now: float) -> None:
        one.under_way = True
        tokens = None if one.whole else one.plan.next_cut(one.done)
        self._send(one.number, tokens, now)
        if tokens is None:
            queue = self._queues[one.worker]
            queue.yielding.remove(one)
            queue.others.add(one.number)
            self._let_go(one, inf, now)
            self._go_on(one.worker, now)
