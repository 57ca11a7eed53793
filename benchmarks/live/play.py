"""Plays a plan in real time, open loop: nothing but a turn's own predecessor delays it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.live.client import Heard, Message
from benchmarks.live.plan import Plan, Turn

Ask = Callable[[Turn, list[Message]], Awaitable[Heard]]


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft_s` counts from when the turn was due, so that a slow client hides nothing."""

    ok: bool
    ttft_s: float
    late_s: float
    """Between due and sent: what the client adds itself."""
    prompt_tokens: int = 0
    cached_tokens: int = 0


NOT_ASKED = Answer(ok=False, ttft_s=float("nan"), late_s=0.0)


async def play(plan: Plan, ask: Ask, on_answer: Callable[[], None] = lambda: None) -> list[Answer]:
    """An answer a turn, in the plan's order. What goes on from a failed turn is not asked."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    ended: list[asyncio.Future[tuple[float, list[Message] | None]]]
    ended = [loop.create_future() for _ in plan.turns]

    async def one(number: int, turn: Turn) -> Answer:
        due = begin + turn.at
        said: list[Message] | None = [{"role": "system", "content": turn.system}] if turn.system else []
        if turn.after is not None:
            end, whole = await ended[turn.after]
            due = max(due, end + turn.think_s)
            if turn.goes_on:
                said = whole
        if said is None:
            ended[number].set_result((loop.time(), None))
            return NOT_ASKED
        await asyncio.sleep(due - loop.time())
        late = loop.time() - due
        messages = [*said, {"role": "user", "content": turn.text}]
        heard = await ask(turn, messages)
        ok = heard.status == 200 and heard.first is not None and heard.end is not None
        answered = [*messages, {"role": "assistant", "content": heard.text}] if ok else None
        ended[number].set_result((loop.time(), answered))
        if heard.first is None or not ok:
            return Answer(ok=False, ttft_s=float("nan"), late_s=late)
        return Answer(True, heard.first - due, late, heard.prompt_tokens, heard.cached_tokens)

    async def counted(number: int, turn: Turn) -> Answer:
        try:
            return await one(number, turn)
        finally:
            on_answer()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(counted(number, turn)) for number, turn in enumerate(plan.turns)]
    return [task.result() for task in tasks]
