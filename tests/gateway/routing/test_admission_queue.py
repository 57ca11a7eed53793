"""Waiting when all are full: order, bounds, fairness, and nothing left behind."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import Overloaded
from gateway.fleet.worker import EngineInfo
from gateway.routing.admission import Admission, QueueLimits
from gateway.routing.caller import Caller
from gateway.routing.route import Route

pytestmark = pytest.mark.anyio
PROMPT = [1] * 40


@pytest.fixture
def crowded(make_fleet: Any) -> Callable[..., Any]:
    """A fleet of one worker with one place, and a queue."""

    def make(**limits: Any) -> Any:
        fleet = make_fleet(admission=Admission(QueueLimits(**{"tick_s": 60.0, "max_wait_s": 60.0, **limits})))
        fleet.add("a", max_requests=1)
        return fleet

    return make


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def serve_all(tasks: dict[str, asyncio.Task[Route]], first: Route) -> list[str]:
    """Frees the one place again and again; returns who got it, in order."""
    order: list[str] = []
    held = first
    waiting = dict(tasks)
    while waiting:
        held.lease.release()
        await settled()
        done = [name for name, task in waiting.items() if task.done()]
        assert len(done) == 1
        order.append(done[0])
        held = waiting.pop(done[0]).result()
    held.lease.release()
    return order


async def test_served_in_order_when_a_place_comes_free(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    tasks = {}
    for name in ("1", "2", "3"):
        tasks[name] = asyncio.create_task(fleet.route(PROMPT))
        await settled()
    assert fleet.admission.depths() == {"m": 3}
    assert await serve_all(tasks, first) == ["1", "2", "3"]
    assert fleet.admission.depths() == {}
    assert fleet.board.get("http://a:1").requests == 0


async def test_a_newcomer_does_not_overtake(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    waiting = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    first.lease.release()  # free, but it is the waiting one's turn
    newcomer = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    assert waiting.done()
    assert not newcomer.done()
    (await waiting).lease.release()
    (await newcomer).lease.release()


async def test_a_flooding_key_delays_others_by_its_share_alone(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    tasks = {}
    for i in range(40):
        tasks[f"flood{i}"] = asyncio.create_task(fleet.route(PROMPT, caller=Caller("flood")))
    await settled()
    for i in range(4):
        tasks[f"quiet{i}"] = asyncio.create_task(fleet.route(PROMPT, caller=Caller("quiet")))
    await settled()
    order = await serve_all(tasks, first)
    # turn and turn about: the quiet key's n-th is served after at most n + 1 of the flood's
    assert [order.index(f"quiet{i}") for i in range(4)] == [1, 3, 5, 7]


async def test_priorities(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    tasks = {}
    for name, priority in (("batch", 10), ("normal", 0), ("urgent", -10)):
        tasks[name] = asyncio.create_task(fleet.route(PROMPT, caller=Caller(name, priority=priority)))
        await settled()
    assert await serve_all(tasks, first) == ["urgent", "normal", "batch"]


async def test_time_is_bounded(crowded: Any) -> None:
    fleet = crowded(max_wait_s=0.02, retry_after_s=3.0)
    first = await fleet.route(PROMPT)
    with pytest.raises(Overloaded, match="no place came free in time") as error:
        await fleet.route(PROMPT)
    assert error.value.retry_after == 3.0
    assert fleet.admission.depths() == {}
    first.lease.release()
    (await fleet.route(PROMPT)).lease.release()


async def test_a_callers_own_deadline_is_shorter(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    with pytest.raises(Overloaded):
        await fleet.route(PROMPT, caller=Caller(deadline_s=0.01))
    first.lease.release()


async def test_size_is_bounded_and_shared(crowded: Any) -> None:
    fleet = crowded(max_items=2)
    first = await fleet.route(PROMPT)
    flood = [asyncio.create_task(fleet.route(PROMPT, caller=Caller("flood"))) for _ in range(2)]
    await settled()
    with pytest.raises(Overloaded, match="its queue of 2 is full"):
        await fleet.route(PROMPT, caller=Caller("flood"))
    quiet = asyncio.create_task(fleet.route(PROMPT, caller=Caller("quiet")))
    await settled()
    with pytest.raises(Overloaded, match="its queue is full"):
        await flood[1]  # it made room
    order = await serve_all({"flood": flood[0], "quiet": quiet}, first)
    assert sorted(order) == ["flood", "quiet"]
    assert fleet.admission.depths() == {}


async def test_who_leaves_frees_the_turn(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    gone = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    stays = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    first.lease.release()
    gone.cancel()  # just as its turn has come
    await settled()
    assert stays.done()
    (await stays).lease.release()
    assert fleet.admission.depths() == {}
    assert fleet.board.get("http://a:1").requests == 0


async def test_queued_requests_are_weighed_again(crowded: Any) -> None:
    fleet = crowded()
    first = await fleet.route(PROMPT)
    waiting = asyncio.create_task(fleet.route(list(range(100))))
    await settled()
    b = fleet.add("b")  # a new worker comes while it waits
    fleet.store(b, list(range(100)))
    fleet.admission.wake_all()
    route = await waiting
    assert (route.worker, route.matched_tokens) == (b, 96)
    first.lease.release()
    route.lease.release()


async def test_the_tick_finds_what_nobody_announces(crowded: Any) -> None:
    fleet = crowded(tick_s=0.01)
    fleet.guards.busy("http://a:1", fleet.now)
    waiting = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    assert not waiting.done()
    fleet.now += 1.0  # the overload mark runs out
    (await asyncio.wait_for(waiting, 30)).lease.release()


async def test_the_turn_is_passed_on_while_there_is_room(make_fleet: Any) -> None:
    fleet = make_fleet(admission=Admission(QueueLimits(tick_s=60.0, max_wait_s=60.0)))
    a = fleet.add("a", max_requests=3)
    held = [await fleet.route(PROMPT) for _ in range(3)]
    tasks = [asyncio.create_task(fleet.route(PROMPT)) for _ in range(3)]
    await settled()
    for route in held:
        route.lease.release()
    await settled()
    assert [task.done() for task in tasks] == [True, True, True]
    for task in tasks:
        task.result().lease.release()
    assert fleet.board.get(a).requests == 0


async def test_models_wait_apart(make_fleet: Any) -> None:
    from gateway.prompt.base import Endpoint, PromptRequest

    fleet = make_fleet(admission=Admission(QueueLimits(tick_s=60.0, max_wait_s=60.0)))
    fleet.add("a", max_requests=1)
    fleet.add("b", EngineInfo("n"))
    first = await fleet.route(PROMPT)
    waiting = asyncio.create_task(fleet.route(PROMPT))
    await settled()
    (await fleet.router.route(PromptRequest(Endpoint.CHAT, "n"))).lease.release()
    first.lease.release()
    (await waiting).lease.release()


async def test_a_second_try_does_not_queue(crowded: Any) -> None:
    fleet = crowded()
    b = fleet.add("b")
    first = await fleet.route(PROMPT, exclude=frozenset({b}))
    with pytest.raises(Overloaded):
        await fleet.route(PROMPT, exclude=frozenset({b}))
    first.lease.release()
