"""Who applies events when, counted in rounds of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.events.rounds import Rounds

pytestmark = pytest.mark.anyio


class Work:
    """Messages that take `each_s` seconds, by a clock of its own."""

    def __init__(self, each_s: float, requests_s: float = 0.0) -> None:
        """`requests_s` is what requests take of each round."""
        self.now, self._each_s, self._requests_s = 0.0, each_s, requests_s
        self.rounds = Rounds(0.0005, busy=lambda: self.now)
        self.done: list[tuple[int, str]] = []
        """In which round of the loop, and whose."""
        self.round = 0

    async def follow(self, name: str, messages: int) -> None:
        for _ in range(messages):
            began = await self.rounds.turn()
            self.now += self._each_s
            self.done.append((self.round, name))
            self.rounds.spent(began)

    async def all(self, followers: Sequence[tuple[str, int]]) -> None:
        tasks = [asyncio.ensure_future(self.follow(*follower)) for follower in followers]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)  # what a request would have in between
            self.now += self._requests_s
            self.round += 1

    def most_in_a_round(self) -> int:
        rounds = [number for number, _ in self.done]
        return max(map(rounds.count, rounds))


async def test_short_messages_share_a_round_until_it_is_used_up() -> None:
    work = Work(0.0002)
    await work.all([("a", 2), ("b", 2), ("c", 2)])
    assert len(work.done) == 6
    assert work.most_in_a_round() == 3  # the third begins with 0.1 ms left


async def test_of_long_ones_there_is_one_a_round() -> None:
    work = Work(0.002)
    await work.all([("a", 3), ("b", 3), ("c", 3)])
    assert len(work.done) == 9
    assert work.most_in_a_round() == 1


async def test_who_waits_longest_is_next() -> None:
    work = Work(0.002)
    await work.all([("a", 3), ("b", 3), ("c", 3)])
    # a asks again before the others have asked at all
    assert [name for _, name in work.done] == ["a", "a", "b", "c", "a", "b", "c", "b", "c"]


async def test_where_requests_take_long_rounds_events_keep_up() -> None:
    """8 ms of requests a round: events get another 4 ms, and not one message of 0.5 ms."""
    work = Work(0.0005, requests_s=0.008)
    await work.all([(str(number), 10) for number in range(40)])
    assert len(work.done) == 400
    assert 350 <= work.round * 8 <= 700
    assert work.most_in_a_round() <= 12


async def test_after_a_pause_a_burst_gets_no_more_than_others() -> None:
    work = Work(0.0005)
    await work.all([("a", 1), ("b", 1)])
    await asyncio.sleep(0)  # and the round after it
    work.now += 3600
    await work.all([(str(number), 1) for number in range(40)])
    assert work.most_in_a_round() == 1


async def test_one_that_is_gone_keeps_nobody_waiting() -> None:
    work = Work(0.002)
    first = asyncio.ensure_future(work.follow("a", 1))
    gone = asyncio.ensure_future(work.follow("b", 1))
    last = asyncio.ensure_future(work.follow("c", 1))
    await first
    gone.cancel()
    async with asyncio.timeout(5):
        await last
    assert [name for _, name in work.done] == ["a", "c"]
    assert gone.cancelled()


async def test_one_that_goes_when_its_turn_has_come_keeps_nobody_waiting() -> None:
    work = Work(0.002)
    began = await work.rounds.turn()
    gone = asyncio.ensure_future(work.rounds.turn())
    last = asyncio.ensure_future(work.follow("c", 1))
    work.now += 1
    work.rounds.spent(began)
    await asyncio.sleep(0)  # both wait, and the next round has chosen the first, who has not gone on yet
    gone.cancel()
    async with asyncio.timeout(5):
        await last
    assert work.done == [(0, "c")]
    assert gone.cancelled()
