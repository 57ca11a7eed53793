"""Sends very long prompts to their worker in slices (gateway.routing.slicing): waits for the right moment,
asks for one beginning after the other, and says what they computed.

At one worker one prompt is sliced at a time, in order of arrival. It is held while other requests of this
gateway have no first token there; requests of other replicas are only met in the engine's own queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.errors import UpstreamError
from gateway.fleet.load import Lease
from gateway.routing.slicing import Plan, Sliced
from gateway.types import Clock, Usage, WorkerId
from gateway.upstream.client import UpstreamClient
from gateway.upstream.lane import Lane
from gateway.upstream.timeouts import Timeouts
from gateway.upstream.usage import read_usage
from gateway.upstream.wire import Flow, ResponseHead, UpstreamRequest

logger = logging.getLogger(__name__)

LOOK_S = 0.02
"""Between two looks at whether somebody else waits."""
_MOST_ANSWER = 256 * 1024
"""Bytes of an answer of one token that are read."""
_REST_S = 600.0
"""How long a worker that does not take slices is not asked again."""

_OF_THE_PROMPT = ("echo", "prompt_logprobs")

Ask = Callable[[int], Awaitable[Usage | None]]
"""For the first so many tokens of the prompt; None where the worker gave no good answer."""


class BeginningAnswer:
    """A sink (gateway.upstream.wire.Sink) that keeps an answer of one token."""

    def __init__(self) -> None:
        self.status = 0
        self._body = bytearray()

    def on_head(self, head: ResponseHead, flow: Flow) -> None:
        self.status = head.status

    def on_body(self, data: bytes, last: bool) -> Lane | None:
        if len(self._body) < _MOST_ANSWER:
            self._body += data
        return None

    @property
    def usage(self) -> Usage | None:
        return read_usage(bytes(self._body)) if self.status == 200 else None


@dataclass(slots=True)
class _Queue:
    """At one worker."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: int = 0
    """What of those that wait there belongs to prompts in slices."""
    prompts: int = 0


class Slices:
    """Of one gateway process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[WorkerId, _Queue] = {}
        self._refused: dict[WorkerId, float] = {}
        """Until when."""

    def enter(self, sliced: Sliced, lease: Lease) -> SlicedPrompt:
        """Whoever enters calls `over` on every exit."""
        queue = self._queues.setdefault(lease.worker, _Queue())
        queue.tokens += lease.uncached_tokens
        queue.prompts += 1
        return SlicedPrompt(self, queue, sliced.plan, lease, self._clock)

    def leave(self, lease: Lease, queue: _Queue) -> None:
        queue.tokens -= lease.uncached_tokens
        queue.prompts -= 1
        if not queue.prompts:
            del self._queues[lease.worker]

    def takes(self, worker: WorkerId) -> bool:
        return self._clock() >= self._refused.get(worker, 0.0)

    def refused(self, worker: WorkerId) -> None:
        now = self._clock()
        self._refused = {w: until for w, until in self._refused.items() if until > now}
        self._refused[worker] = now + _REST_S


class SlicedPrompt:
    """One prompt's way to its worker. Its turn is over with its answer's first byte."""

    computed = 0
    """Tokens that its slices took: the engine will call them cached."""
    sent = 0
    """Slices."""

    def __init__(self, slices: Slices, queue: _Queue, plan: Plan, lease: Lease, clock: Clock) -> None:
        self._slices = slices
        self._queue = queue
        self._plan = plan
        self._lease = lease
        self._clock = clock
        self._began = clock()
        self._has_turn = self._is_over = False
        lease.on_first_byte = self.over

    def over(self) -> None:
        """The answer has begun, or never will. May be called again."""
        if self._is_over:
            return
        self._is_over = True
        if self._has_turn:
            self._queue.turn.release()
        self._slices.leave(self._lease, self._queue)

    async def run(self, ask: Ask) -> None:
        """Returns when the request itself is to be sent. Raises nothing of its own: where a slice fails, that
        will tell whether the worker does."""
        plan, worker = self._plan, self._lease.worker
        done = plan.cached_tokens
        if not self._slices.takes(worker) or not await self._turn(done):
            return
        while (tokens := plan.next_cut(done)) is not None:
            if not await self._others(done):
                return
            try:
                usage = await ask(tokens)
            except UpstreamError as error:
                logger.warning("a slice of a long prompt failed", extra={"worker": worker, "why": str(error)})
                return
            if usage is None:
                self._slices.refused(worker)
                logger.warning("long prompts go in one piece: slices are refused", extra={"worker": worker})
                return
            cached = usage.cached_tokens or 0
            self.sent += 1
            self.computed += max(0, tokens - cached)
            if done - cached >= 2 * plan.block:
                return  # somebody needed the room, and the next slice would compute it all again
            done = tokens
        await self._others(done)

    def left_to(self, usage: Usage | None) -> Usage | None:
        """What the answer's own usage says, without what its slices had computed for it."""
        if usage is None or usage.cached_tokens is None or not self.computed:
            return usage
        return msgspec.structs.replace(usage, cached_tokens=max(0, usage.cached_tokens - self.computed))

    async def _turn(self, done: int) -> bool:
        """False where it has yielded enough before its turn came."""
        try:
            async with asyncio.timeout(max(0.0, self._left(done))):
                await self._queue.turn.acquire()
        except TimeoutError:
            return False
        self._has_turn = True
        return True

    async def _others(self, done: int) -> bool:
        """Waits until nobody else does; False where it has yielded enough."""
        while (left := self._left(done)) > 0:
            if self._lease.load.waiting_tokens <= self._queue.tokens:
                return True
            await asyncio.sleep(min(LOOK_S, left))
        return False

    def _left(self, done: int) -> float:
        return self._plan.hold_s(self._clock() - self._began, done)


async def ask_for_beginning(
    client: UpstreamClient,
    url: str,
    beginning: Callable[[int], UpstreamRequest],
    timeouts: Timeouts,
    deadline: float,
    tokens: int,
) -> Usage | None:
    """Raises UpstreamError."""
    answer = BeginningAnswer()
    await client.exchange(url, beginning(tokens), answer, timeouts, deadline)
    return answer.usage


def beginning_of(
    request: UpstreamRequest, sliced: Sliced, model: str, salt: str
) -> Callable[[int], UpstreamRequest]:
    """Completions of the first so many tokens of `request`'s prompt, with the headers of that one."""
    fields: dict[str, object] = {"model": model, "max_tokens": 1, "temperature": 0}
    if salt:
        fields["cache_salt"] = salt

    def beginning(tokens: int) -> UpstreamRequest:
        headers = [
            (name, b"%s-%d" % (value, tokens) if name == b"x-request-id" else value)
            for name, value in request.headers
        ]
        body = msgspec.json.encode(fields | {"prompt": sliced.ids[:tokens].tolist()})
        return UpstreamRequest(b"POST", b"/v1/completions", headers, body, written=request.written)

    return beginning


def reads_its_prompt(fields: Mapping[str, object] | None) -> bool:
    """An engine that has to say something of the prompt computes all of it, whatever it has cached."""
    return fields is not None and any(fields.get(name) not in (None, False) for name in _OF_THE_PROMPT)
