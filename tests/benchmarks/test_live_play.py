from __future__ import annotations

import asyncio

import pytest

from benchmarks.live.client import Heard, Message
from benchmarks.live.plan import Plan, Turn
from benchmarks.live.play import play

pytestmark = pytest.mark.anyio


def plan(*turns: Turn) -> Plan:
    return Plan("toy", turns, "fast", 10, 1.0, "")


def turn(text: str, after: int | None = None, *, system: str = "", goes_on: bool = False) -> Turn:
    return Turn(0.0, text, 1, "s", after, system=system, goes_on=goes_on)


def heard(text: str) -> Heard:
    now = asyncio.get_running_loop().time()
    return Heard(200, text, first=now, end=now, prompt_tokens=7, cached_tokens=3)


async def test_a_turn_goes_on_from_the_answer_and_nobody_else_waits() -> None:
    asked: list[tuple[str, list[Message]]] = []
    other_asked = asyncio.Event()

    async def ask(turn: Turn, messages: list[Message]) -> Heard:
        asked.append((turn.text, messages))
        if turn.text == "other":
            other_asked.set()
        if turn.text == "one":
            # its answer comes only once the other conversation's question was asked
            await other_asked.wait()
        return heard(f"answer to {turn.text}")

    ended = 0

    def tick() -> None:
        nonlocal ended
        ended += 1

    answers = await play(
        plan(turn("one", system="be brief"), turn("two", 0, goes_on=True), turn("three", 0), turn("other")),
        ask,
        tick,
    )
    by_text = dict(asked)
    assert list(by_text)[:2] == ["one", "other"]
    assert by_text["two"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer to one"},
        {"role": "user", "content": "two"},
    ]
    assert by_text["three"] == [{"role": "user", "content": "three"}]
    assert all(answer.ok and answer.ttft_s >= answer.late_s >= 0 for answer in answers)
    assert (answers[0].prompt_tokens, answers[0].cached_tokens) == (7, 3)
    assert ended == 4


@pytest.mark.parametrize("broken", [Heard(503), Heard(200, "cut", first=1.0), Heard(200, end=1.0)])
async def test_nothing_goes_on_from_a_failed_answer(broken: Heard) -> None:
    asked: list[str] = []

    async def ask(turn: Turn, messages: list[Message]) -> Heard:
        asked.append(turn.text)
        return broken if turn.text == "one" else heard("fine")

    answers = await play(plan(turn("one"), turn("two", 0, goes_on=True), turn("three", 0)), ask)
    assert [answer.ok for answer in answers] == [False, False, True]
    assert asked == ["one", "three"]
