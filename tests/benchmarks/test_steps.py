"""`make steps`: calls and time by step, where both are known."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import count
from types import ModuleType

import pytest

from benchmarks.step_meters import Calls, Time, stepped, without_the_clocks
from benchmarks.steps import STEPS, counted, page
from benchmarks.wire.bench import prompts


def inner(number: int) -> int:
    return len(str(number))


class Outer:
    async def run(self, numbers: list[int]) -> int:
        total = 0
        for number in numbers:
            total += app().inner(number)
            await asyncio.sleep(0)
        return total

    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise LookupError


def app() -> ModuleType:
    return sys.modules["steps_app"]


MARKED = {"outside in": ("steps_app:Outer.run", "steps_app:Outer.fail"), "within": ("steps_app:inner",)}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = ModuleType("steps_app")
    made.__dict__.update(inner=inner, Outer=Outer)
    monkeypatch.setitem(sys.modules, "steps_app", made)
    plain = Outer.run
    yield
    assert Outer.run is plain
    assert made.__dict__["inner"] is inner


@pytest.mark.anyio
async def test_calls_belong_to_the_innermost_step() -> None:
    """`run` is begun once and gone on with twice, calls `app` twice, and waits twice in two functions of
    asyncio's that are begun and gone on with: 3 + 2 + 8. `inner` calls `len`; `str` is no function."""
    calls = Calls("outside")
    with stepped(MARKED, calls):
        waiting = Outer().run([7, 123])
        sys.setprofile(calls)
        total = await waiting
        sys.setprofile(None)
    assert total == 4
    assert calls.python["outside in"] == 13
    assert calls.python["within"] == 2
    assert calls.c["within"] == 2
    assert calls.step == "outside"


@pytest.mark.anyio
async def test_time_adds_up_to_the_whole() -> None:
    """A clock that ticks once a reading: each border ends a stretch of one tick."""
    clock = Time("outside", count().__next__)
    with stepped(MARKED, clock):
        clock.begin()
        await Outer().run([7, 123])
        clock.end()
    # in, inner, out again, wait; the same; and the rest of it
    assert clock.ns == {"outside": 4, "outside in": 5, "within": 2}
    assert clock.borders == {"outside": 6, "outside in": 10, "within": 4}


@pytest.mark.anyio
async def test_a_step_that_fails_is_left_all_the_same() -> None:
    clock = Time("outside")
    with stepped(MARKED, clock):
        clock.begin()
        with pytest.raises(LookupError):
            await Outer().fail()
        task = asyncio.create_task(Outer().run([1] * 1000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert clock.step == "outside"


def test_what_the_clocks_take_is_taken_off_by_borders() -> None:
    """300 of 1,000 are the clocks', for thirty borders."""
    plain = without_the_clocks({"a": 600, "b": 400}, {"a": 10, "b": 20}, 700.0)
    assert plain == {"a": 500.0, "b": 200.0}


def test_what_is_not_there_is_said() -> None:
    with (
        pytest.raises(AttributeError),
        stepped({"a": ("steps_app:inner", "steps_app:other")}, Time("outside")),
    ):
        pass


def test_a_row_of_the_page() -> None:
    assert page([("a step", 20.04, 3.0, 74.6)]).splitlines()[2] == "| a step | 20 | 3 | 75 |"


@pytest.mark.anyio
async def test_every_step_is_one_of_a_request() -> None:
    """A name that the path no longer calls would leave its step empty. Two calls each at least, to have
    begun and to have done something."""
    calls = await counted(prompts(200, 10, stream=False))
    assert {step for step in STEPS if calls.python[step] + calls.c[step] < 20} == set()
