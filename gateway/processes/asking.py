"""Several processes asked the same, side by side: who answered what, and who did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from gateway.errors import Unavailable
from gateway.processes.crew import heard
from gateway.processes.member import Member
from gateway.processes.relay import Silent

UNANSWERED = "X-Gateway-Unanswered"
"""Header: the numbers of the processes that an answer is without."""


@dataclass(frozen=True, slots=True)
class Asked:
    answers: Sequence[tuple[Member, httpx.Response]]
    unanswered: Sequence[int]
    """Processes that are there and do not answer, by number."""

    def headers(self) -> dict[str, str]:
        return {UNANSWERED: ", ".join(map(str, self.unanswered))} if self.unanswered else {}


async def ask_all(members: Sequence[Member], ask: Callable[[Member], Awaitable[httpx.Response]]) -> Asked:
    """`ask` raises Unavailable. Who says nothing already is not asked."""
    asked = heard(members)
    came = await asyncio.gather(*map(ask, asked), return_exceptions=True)
    answers, unanswered = [], {member.number for member in members if member not in asked}
    for member, answer in zip(asked, came, strict=True):
        if isinstance(answer, httpx.Response):
            answers.append((member, answer))
        elif isinstance(answer, Silent):
            unanswered.add(member.number)
        elif not isinstance(answer, Unavailable):
            raise answer
    return Asked(answers, sorted(unanswered))


def of_all(asked: Asked) -> httpx.Response:
    """The answer of one that failed, else of one that says `clean` is false, else any. Raises Unavailable
    where all is well but some did not answer: they will not be told again."""
    worst = max((answer for _, answer in asked.answers), key=_badness)
    if asked.unanswered and _badness(worst) == 0:
        names = ", ".join(map(str, asked.unanswered))
        raise Unavailable(
            f"not done everywhere: no answer from process {names}; it was done in the others", retry_after=1.0
        )
    return worst


def _badness(answer: httpx.Response) -> int:
    if not answer.is_success:
        return 2
    return int(answer.json().get("clean") is False)


async def workers_there(members: Sequence[Member], seconds: float) -> set[str] | None:
    """The workers that there are, by the word of whoever gives it first; None where nobody does in time."""
    asked = [asyncio.ensure_future(member.line.get("/admin/workers")) for member in members]
    try:
        async with asyncio.timeout(seconds):
            for coming in asyncio.as_completed(asked):
                try:
                    answer = await coming
                except Unavailable:
                    continue
                if answer.is_success:
                    return {row["id"] for row in answer.json()["workers"]}
    except TimeoutError:
        pass
    finally:
        for question in asked:
            question.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return None
