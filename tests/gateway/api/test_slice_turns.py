"""Very long prompts at one worker: whose turn it is, who is held for whom, and who follows."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.api.slices import InVain, SlicedPrompt, Slices
from gateway.errors import UpstreamConnectError
from gateway.fleet.load import Lease, LoadBoard
from gateway.routing.route import Notes, Route
from gateway.routing.slicing import Plan, Sliced
from gateway.types import BlockKey, Usage, WorkerId

pytestmark = pytest.mark.anyio

PROMPT = [number % 500 for number in range(5000)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


KEYS = range(7000, 7312)
FOREVER = float("inf")


class Road:
    """One worker's load, prompts of 5,000 tokens that go there, and what was asked for."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.slices = Slices(self.loop.time)
        self.load = LoadBoard().add(WorkerId("w"))
        self.seconds = seconds
        self.asked: list[tuple[str, int]] = []

    def other(self, tokens: int = 100) -> Lease:
        """A request in one piece that has no answer yet."""
        return Lease.take(self.load, prompt_tokens=tokens, matched_tokens=0)

    def enter(self, matched: int = 0) -> SlicedPrompt:
        plan = Plan(5000, matched, self.seconds, 1024, 16)
        lease = Lease.take(
            self.load, prompt_tokens=5000, matched_tokens=matched, yielding_tokens=plan.yields_tokens
        )
        self.entered = self.route(lease, matched)
        return self.slices.enter(Sliced(plan, array("I", PROMPT)), self.entered)

    def route(self, lease: Lease, matched: int = 0, held: int = 0, keys: Sequence[int] = KEYS) -> Route:
        return Route(
            lease.worker, "", "m", lease, 5000, matched, matched, [[BlockKey(key) for key in keys]], "match",
            notes=Notes(held_blocks=held),
        )  # fmt: skip

    def ask(self, name: str, then: Callable[[], Awaitable[None]] | None = None) -> Any:
        async def ask(tokens: int) -> Usage:
            self.asked.append((name, tokens))
            if then is not None:
                await then()
            return Usage(tokens, 1, max(0, tokens - 1024))

        return ask


async def test_who_was_promised_a_part_of_it_follows_and_is_nobody_to_yield_to() -> None:
    road = Road(seconds=4000.0)
    prompt, gates = road.enter(), [asyncio.Event() for _ in CUTS]
    deadline = road.loop.time() + 60

    async def next_gate() -> None:
        await gates[len(road.asked) - 1].wait()

    async def asked(count: int) -> None:
        async with asyncio.timeout(20):
            while len(road.asked) < count:  # noqa: ASYNC110 - it looks around by itself
                await asyncio.sleep(0.005)

    def lease(matched: int) -> Lease:
        return Lease.take(road.load, prompt_tokens=matched + 100, matched_tokens=matched)

    def follow(lease: Lease, matched: int, **other: Any) -> asyncio.Task[bool]:
        return asyncio.create_task(road.slices.follow(road.route(lease, matched, **other), deadline))

    # what it has from others, and another prompt: nothing to wait for
    for other in ({"held": 100}, {"keys": [key + 1 for key in KEYS]}):
        free = lease(1600)
        assert not await follow(free, 1600, **other)
        free.release()
    running = asyncio.create_task(prompt.run(road.ask("a", next_gate), FOREVER))
    of_short = lease(1600)
    short, long = follow(of_short, 1600), follow(lease(4992), 4992)
    await asked(1)
    gates[0].set()
    await asked(2)
    assert not short.done()
    gates[1].set()
    assert await asyncio.wait_for(short, 20)
    # it is somebody to yield to from now on, until it has its answer
    await asyncio.sleep(0.1)
    assert len(road.asked) == 2
    of_short.first_byte()
    await asked(3)
    for gate in gates[:3]:
        gate.set()
    await asked(4)
    assert not long.done()
    gates[3].set()
    # the request itself is sent, and whoever comes behind it finds all of it
    await asyncio.wait_for(running, 20)
    assert await asyncio.wait_for(long, 20)
    assert road.asked == [("a", cut) for cut in CUTS]


async def test_who_was_promised_much_of_one_that_is_given_up_is_decided_anew() -> None:
    """Who needs more than goes in one piece, 1,280 tokens here: of 5,000 nothing but the first 1,024 came."""
    road = Road(seconds=4000.0)
    prompt, second = road.enter(), asyncio.Event()

    async def stuck() -> None:
        if len(road.asked) == 2:
            second.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(prompt.run(road.ask("a", stuck), FOREVER))
    await second.wait()

    def follow(prompt_tokens: int, matched: int, **other: Any) -> asyncio.Task[bool]:
        lease = Lease.take(road.load, prompt_tokens=prompt_tokens, matched_tokens=matched)
        route = road.route(lease, matched, **other)
        route.prompt_tokens = prompt_tokens
        return asyncio.create_task(road.slices.follow(route, FOREVER))

    much, another = follow(2305, 2304), follow(5000, 4992)
    little, stranger = follow(2304, 2288), follow(5000, 0, keys=[key + 1 for key in KEYS])
    held = follow(2305, 2304, held=144)
    sliced = road.enter(matched=2304)
    slicing = asyncio.create_task(sliced.run(road.ask("b"), FOREVER))
    assert not await held
    await asyncio.sleep(0)
    running.cancel()
    for one in (much, another, slicing):
        with pytest.raises(InVain):
            await asyncio.wait_for(one, 20)
    # what is missing goes in one piece, or was never promised
    assert await asyncio.wait_for(little, 20)
    assert await asyncio.wait_for(stranger, 20)
    assert road.asked == [("a", 1024), ("a", 2048)]
    assert not road.slices.queues


async def test_who_was_promised_a_part_of_one_that_is_sent_is_not() -> None:
    """Though it was sent in one piece, and long before its time."""
    road = Road(seconds=0.4)
    road.other(5000)
    prompt = road.enter()
    lease = Lease.take(road.load, prompt_tokens=5000, matched_tokens=4992)
    following = asyncio.create_task(road.slices.follow(road.route(lease, 4992), FOREVER))
    await asyncio.sleep(0)
    await prompt.run(road.ask("a"), FOREVER)
    assert road.asked == []
    assert await asyncio.wait_for(following, 20)


async def test_nobody_follows_for_longer_than_it_has() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()
    lease = Lease.take(road.load, prompt_tokens=1700, matched_tokens=1600)
    assert await road.slices.follow(road.route(lease, 1600), road.loop.time() + 0.05)
    prompt.over()


CUTS: Sequence[int] = (1024, 2048, 3072, 4096)


async def test_it_waits_for_others_and_goes_on_when_they_have_their_answers() -> None:
    road = Road(seconds=4000.0)
    other, late = road.other(), list[Lease]()
    prompt = road.enter()

    async def somebody_comes() -> None:
        if len(road.asked) == 2:
            late.append(road.other())

    running = asyncio.create_task(prompt.run(road.ask("a", somebody_comes), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == []
    other.first_byte()
    async with asyncio.timeout(20):
        while len(road.asked) < 2:  # noqa: ASYNC110 - it looks around by itself
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert road.asked == [("a", 1024), ("a", 2048)]
    late[0].release()
    await asyncio.wait_for(running, 20)
    assert road.asked == [("a", cut) for cut in CUTS]
    assert (prompt.sent, prompt.computed) == (4, 4096)
    assert prompt.left_to(Usage(5000, 7, 4096)) == Usage(5000, 7, 0)
    assert prompt.left_to(Usage(5000, 7, None)) == Usage(5000, 7, None)
    prompt.over()


async def test_it_yields_no_more_than_its_share() -> None:
    road = Road(seconds=0.4)
    road.other(5000)
    prompt = road.enter()
    assert (road.load.waiting_tokens, road.load.yielding_tokens) == (6024, 3976)
    began = road.loop.time()
    await prompt.run(road.ask("a"), FOREVER)
    # a quarter of its own time; then the rest goes in one piece, which is all of it here
    assert road.loop.time() - began >= 0.1
    assert road.asked == []
    # all of it is somebody's wait from then on
    assert (road.load.waiting_tokens, road.load.yielding_tokens) == (10_000, 0)
    prompt.over()
    prompt._lease.release()
    assert road.load.waiting_tokens == 5000


async def test_answers_in_one_piece_hold_it_for_as_long_as_their_prompts_take() -> None:
    """They show their first byte when all of them is there."""
    road = Road(seconds=10.0)
    road.other()
    prompt, began = road.enter(), road.loop.time()
    await prompt.run(road.ask("a"), FOREVER)
    assert road.asked == [("a", cut) for cut in CUTS]
    # two milliseconds a token, and as much again to be sure
    assert road.loop.time() - began >= 100 * 0.004
    assert road.load.waiting_tokens == 100 + 1024


async def test_it_is_held_no_longer_than_its_client_waits() -> None:
    road = Road(seconds=4000.0)
    road.other()
    prompt = road.enter()
    await prompt.run(road.ask("a"), road.loop.time() + 0.05)
    second = road.enter()
    await second.run(road.ask("b"), road.loop.time() + 0.05)
    assert road.asked == []
    prompt.over()
    second.over()


async def test_an_engine_that_does_not_say_what_was_cached() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()

    async def silent(tokens: int) -> Usage:
        road.asked.append(("a", tokens))
        return Usage(tokens, 1, None)

    await prompt.run(silent, FOREVER)
    assert (road.asked, prompt.computed) == ([("a", cut) for cut in CUTS], 4096)
    prompt.over()


async def test_long_ones_come_in_order_of_arrival_in_slices_or_not() -> None:
    road = Road(seconds=4000.0)
    first, gate = road.enter(), asyncio.Event()
    running = asyncio.create_task(first.run(road.ask("a", gate.wait), FOREVER))
    # a second with hardly any time to yield, and promised a part of the first; one in one piece behind them
    road.seconds = 0.4
    second = road.enter(matched=1024)
    slicing = asyncio.create_task(second.run(road.ask("b"), FOREVER))
    third = Lease.take(road.load, prompt_tokens=1281, matched_tokens=0)
    following = asyncio.create_task(road.slices.follow(road.route(third), FOREVER))
    short = Lease.take(road.load, prompt_tokens=1280, matched_tokens=0)
    assert not await road.slices.follow(road.route(short), FOREVER)
    short.first_byte()
    await asyncio.sleep(0.2)  # longer than the second would yield: to wait for its turn is not to
    assert road.asked == [("a", 1024)]
    gate.set()
    await asyncio.wait_for(running, 20)
    assert not following.done()
    first._lease.first_byte()
    await asyncio.wait_for(slicing, 20)
    assert await asyncio.wait_for(following, 20)
    assert road.asked == [*(("a", cut) for cut in CUTS), *(("b", cut) for cut in (2048, 3072, 4096))]
    assert not road.slices.queues


async def test_one_after_the_other_from_first_slice_to_first_byte() -> None:
    road = Road(seconds=4000.0)
    first, second = road.enter(), road.enter()
    await first.run(road.ask("a"), FOREVER)
    running = asyncio.create_task(second.run(road.ask("b"), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == [("a", cut) for cut in CUTS]
    # the first one's answer begins
    first_lease = first._lease
    first_lease.first_byte()
    await asyncio.wait_for(running, 20)
    assert road.asked[4:] == [("b", cut) for cut in CUTS]
    first.over()
    second.over()
    second.over()
    second._lease.release()
    first_lease.release()
    assert (road.load.waiting_tokens, road.load.yielding_tokens, road.load.requests) == (0, 0, 0)


async def test_whoever_gives_up_waiting_for_a_turn_has_none_to_give_back() -> None:
    road = Road(seconds=4000.0)
    first, gate = road.enter(), asyncio.Event()
    running = asyncio.create_task(first.run(road.ask("a", gate.wait), FOREVER))
    await asyncio.sleep(0)
    assert road.asked == [("a", 1024)]
    hasty = road.enter()
    await hasty.run(road.ask("b"), road.loop.time() + 0.05)
    # it is one of the others now, until it has its answer
    hasty._lease.first_byte()
    third = road.enter()
    waiting = asyncio.create_task(third.run(road.ask("c"), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == [("a", 1024)]
    gate.set()
    await asyncio.wait_for(running, 20)
    first._lease.first_byte()
    await asyncio.wait_for(waiting, 20)
    assert road.asked == [*(("a", cut) for cut in CUTS), *(("c", cut) for cut in CUTS)]
    assert not road.slices.queues


async def test_a_slice_that_cannot_be_sent_is_the_last() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()

    async def refuse(tokens: int) -> Usage:
        raise UpstreamConnectError("w refused the connection")

    await prompt.run(refuse, FOREVER)
    assert (prompt.sent, prompt.computed) == (0, 0)
    prompt.over()
