"""Very long prompts on their way to a worker in slices (gateway.routing.slicing): whose turn it is, who waits
for whom, and what slices have computed (what is asked of the worker: gateway.api.beginnings).

At one worker one prompt is sliced at a time, in order of arrival. It is held while other requests of this
gateway have no first byte there, but no longer than their prompts may take, for an answer in one piece shows
that late. Requests of other replicas are only met in the engine's own queue. Whoever was promised a part of
such a prompt that is not there yet does not pass it: that would be computed twice. Nor does a long one that
goes in one piece: those come in order of arrival. Where such a prompt is given up, its client has left, who
was promised much of it is decided anew, and the first of them may go in slices himself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import msgspec

from gateway.api.beginnings import SliceRefused
from gateway.errors import UpstreamError, UpstreamGivenUp
from gateway.fleet.load import Lease
from gateway.routing.route import Route
from gateway.routing.slice_refusals import SliceRefusals
from gateway.routing.slicing import Plan, Sliced, owes
from gateway.types import Clock, Usage, WorkerId

logger = logging.getLogger(__name__)

LOOK_S = 0.02
"""Between two looks at whether somebody else waits."""

Ask = Callable[[int], Awaitable[Usage]]
"""For the first so many tokens of the prompt. Raises UpstreamError, and SliceRefused."""


class InVain(Exception):
    """What a request was promised of another prompt will not come, and is more than goes in one piece."""


@dataclass(slots=True)
class _Queue:
    """At one worker."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: int = 0
    """What of those that wait there belongs to prompts in slices."""
    prompts: list[SlicedPrompt] = field(default_factory=list)


class Slices:
    """Of one gateway process."""

    def __init__(self, clock: Clock, refusals: SliceRefusals | None = None) -> None:
        """`refusals` are those that decisions know of."""
        self._clock = clock
        self.refusals = refusals if refusals is not None else SliceRefusals(clock)
        self.queues: dict[WorkerId, _Queue] = {}
        """Where there are any. To be read only."""

    def enter(self, sliced: Sliced, route: Route) -> SlicedPrompt:
        """Whoever enters calls `over` on every exit."""
        queue = self.queues.setdefault(route.worker, _Queue())
        queue.tokens += route.lease.uncached_tokens
        owing = [prompt for prompt in queue.prompts if prompt.owes(route)]
        prompt = SlicedPrompt(self, queue, sliced.plan, route, owing, self._clock)
        queue.prompts.append(prompt)
        return prompt

    def leave(self, prompt: SlicedPrompt, lease: Lease, queue: _Queue) -> None:
        queue.tokens -= lease.uncached_tokens
        queue.prompts.remove(prompt)
        if not queue.prompts:
            del self.queues[lease.worker]

    async def follow(self, route: Route, deadline: float) -> bool:
        """For one that goes in one piece. Waits until what it was promised of prompts in slices is there, or,
        where it is long itself, until those before it are on their way; no longer than to the `deadline`, on
        the loop's clock. False: it need not. Raises InVain."""
        queue, lease = self.queues.get(route.worker), route.lease
        if queue is None:
            return False
        tokens: float = route.matched_tokens
        owing = [prompt for prompt in queue.prompts if prompt.owes(route)]
        ahead = owing[0] if owing else None
        if lease.uncached_tokens > (last := queue.prompts[-1]).rest_tokens:
            tokens, ahead = inf, last
        if ahead is None:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await ahead.reach(tokens, lease.uncached_tokens)
                if any(prompt.leaves(route) for prompt in owing):
                    raise InVain
        return True


class SlicedPrompt:
    """One prompt's way to its worker, until the request itself is sent."""

    computed = 0
    """Tokens that its slices took: the engine will call them cached."""
    sent = 0
    """Slices."""

    def __init__(
        self,
        slices: Slices,
        queue: _Queue,
        plan: Plan,
        route: Route,
        owing: Sequence[SlicedPrompt],
        clock: Clock,
    ) -> None:
        """`owing` are those before it of which it was promised something that is not there yet."""
        self._slices = slices
        self._queue = queue
        self._plan = plan
        self._route = route
        self._owing = owing
        self._lease = route.lease
        self._clock = clock
        self._began = self._deadline = 0.0
        self._done = plan.cached_tokens
        self._followers: list[tuple[float, int, asyncio.Future[None]]] = []
        """From how many tokens on each can go, and what it has of its own."""
        self._past = 0
        """What waits of others and must have been computed by now."""
        self._has_turn = self._is_over = self._given_up = False

    def over(self, *, sent: bool = False) -> None:
        """It is `sent`, or never will be. May be called again."""
        if self._is_over:
            return
        self._is_over, self._given_up = True, not sent
        if self._has_turn:
            self._queue.turn.release()
        self._slices.leave(self, self._lease, self._queue)
        self._let_go()

    @property
    def rest_tokens(self) -> float:
        """Who has more of its own does not pass it."""
        return self._plan.rest_tokens

    def owes(self, route: Route) -> bool:
        """That one was promised a part of this prompt that is not there yet."""
        if len(route.keys) != 1:
            return False
        notes = route.notes
        blocks = route.matched_tokens // notes.unit
        return owes(self._route.keys[0], self._done, route.keys[0], blocks, notes.held_blocks, notes.unit)

    def leaves(self, route: Route) -> bool:
        """It was given up, and that one would have to compute more than goes in one piece."""
        notes = route.notes
        there = max(self._done, notes.held_blocks * notes.unit)
        return self._given_up and self.owes(route) and route.prompt_tokens - there > self.rest_tokens

    async def reach(self, tokens: float, uncached_tokens: int) -> None:
        """Until so many of its tokens are there, or all are asked for, ahead of whoever comes then. It does
        not yield meanwhile to whoever waits for that, with `uncached_tokens` of its own."""
        follower = asyncio.get_running_loop().create_future()
        self._followers.append((tokens, uncached_tokens, follower))
        self._queue.tokens += uncached_tokens
        try:
            await follower
        finally:
            if follower.cancelled():
                self._queue.tokens -= uncached_tokens

    def _let_go(self) -> None:
        staying = []
        for tokens, uncached_tokens, follower in self._followers:
            if not self._is_over and tokens > self._done:
                staying.append((tokens, uncached_tokens, follower))
            elif not follower.done():
                self._queue.tokens -= uncached_tokens
                follower.set_result(None)
        self._followers = staying

    async def run(self, ask: Ask, deadline: float) -> None:
        """Returns when the request itself is to be sent, at the `deadline`, by the loop, at the latest.
        Raises InVain, before a slice of it was sent, and UpstreamGivenUp; where a slice fails otherwise, the
        request will tell whether the worker does."""
        self._deadline = deadline
        try:
            if not await self._slice(ask):
                # what is left of it goes in one piece
                self._queue.tokens += self._lease.yield_no_more(self._plan.prompt_tokens - self._done)
        except BaseException:
            self.over()
            raise
        self.over(sent=True)

    async def _slice(self, ask: Ask) -> bool:
        """False where it ends before its last slice."""
        plan, worker = self._plan, self._lease.worker
        if not await self._turn() or not self._slices.refusals.takes(worker):
            return False
        if any(prompt.leaves(self._route) for prompt in self._owing):
            raise InVain
        while (tokens := plan.next_cut(self._done)) is not None:
            if not await self._others():
                return False
            try:
                usage = await ask(tokens)
            except UpstreamGivenUp:
                raise  # it hangs: the request itself would only be one more that waits there
            except UpstreamError as error:
                if asyncio.get_running_loop().time() < self._deadline:
                    why = {"worker": worker, "why": str(error)}
                    logger.warning("a slice of a long prompt failed", extra=why)
                return False
            except SliceRefused as error:
                if error.computed:
                    self.sent += 1
                    self.computed += tokens - self._done
                self._slices.refusals.refused(worker)
                why = {"worker": worker, "why": str(error)}
                logger.warning("long prompts go in one piece: slices are refused", extra=why)
                return False
            # who does not say what was cached is taken at the word of its events
            cached = self._done if usage.cached_tokens is None else usage.cached_tokens
            self.sent += 1
            self.computed += max(0, tokens - cached)
            if plan.room_taken(self._done, cached):
                return False
            self._done = tokens
            self._let_go()
        return await self._others()

    def left_to(self, usage: Usage | None) -> Usage | None:
        """What the answer's own usage says, without what its slices had computed for it."""
        if usage is None or usage.cached_tokens is None or not self.computed:
            return usage
        return msgspec.structs.replace(usage, cached_tokens=max(0, usage.cached_tokens - self.computed))

    async def _turn(self) -> bool:
        """False where its client waits no longer. To wait for its turn is not to yield."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._queue.turn.acquire()
        except TimeoutError:
            return False
        self._has_turn, self._began = True, self._clock()
        return True

    async def _others(self) -> bool:
        """Waits until nobody else does, or whoever does must have been computed; False where it has yielded
        enough."""
        plan, clock = self._plan, self._clock
        token_s = 2 * plan.seconds / (plan.prompt_tokens - plan.cached_tokens)
        seen, since = 0, clock()
        while (left := self._left()) > 0:
            others = self._lease.load.waiting_tokens - self._queue.tokens
            if others != seen:
                seen, since = others, clock()
            if others <= self._past or clock() - since > token_s * (others - self._past):
                self._past = max(0, others)
                return True
            await asyncio.sleep(min(LOOK_S, left))
        return False

    def _left(self) -> float:
        """Seconds that it may still be held."""
        hold = self._plan.hold_s(self._clock() - self._began, self._done)
        return min(hold, self._deadline - asyncio.get_running_loop().time())
