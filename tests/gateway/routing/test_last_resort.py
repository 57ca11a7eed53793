"""Nobody is trusted: who is asked all the same, one at a time, and what the others are told."""

import asyncio
from typing import Any

import pytest

from gateway.errors import Overloaded, Unavailable
from gateway.fleet.breaker import BreakerLimits
from gateway.fleet.guards import Guards
from gateway.fleet.outliers import OutlierLimits
from gateway.routing.admission import Admission, QueueLimits
from gateway.routing.route import Outcome, Route
from gateway.types import WorkerId

pytestmark = pytest.mark.anyio


def end(fleet: Any, route: Route, outcome: Outcome) -> None:
    fleet.router.finish(route, outcome, None, None)
    route.lease.release()


async def break_open(fleet: Any, worker: WorkerId) -> None:
    others = frozenset(w.id for w in fleet.registry.workers()) - {worker}
    for _ in range(3):
        end(fleet, await fleet.route(exclude=others), Outcome.UPSTREAM_ERROR)


async def test_the_one_whose_breaker_closes_soonest_is_asked_and_is_trusted_when_it_answers(
    fleet: Any,
) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    await break_open(fleet, b)
    fleet.now += 2.0
    await break_open(fleet, a)
    assert fleet.guards.rests_for(b, fleet.now) == 3.0
    assert fleet.guards.rests_for(a, fleet.now) == 5.0
    route = await fleet.route()
    assert (route.worker, route.reason, route.notes.probe) == (b, "last_resort", True)
    assert fleet.watching.seen[-1] == ("decided", "m", "estimated_ttft", "last_resort")
    end(fleet, route, Outcome.OK)
    again = await fleet.route()
    assert (again.worker, again.reason, again.notes.probe) == (b, "unread", False)


async def test_one_at_a_time_a_worker_then_503_with_the_time_of_the_next_probe(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    await break_open(fleet, a)
    fleet.now += 2.0
    await break_open(fleet, b)
    routes = [await fleet.route(), await fleet.route()]
    assert [route.worker for route in routes] == [a, b]
    with pytest.raises(Unavailable, match="breaker open: a probe is on its way") as error:
        await fleet.route()
    assert (error.value.status, error.value.retry_after) == (503, 1.0)
    end(fleet, routes[0], Outcome.UPSTREAM_ERROR)
    end(fleet, routes[1], Outcome.UPSTREAM_ERROR)
    # who was asked before its time, and failed, rests no longer for it
    assert fleet.guards.rests_for(a, fleet.now) == 3.0
    assert fleet.guards.rests_for(b, fleet.now) == 5.0
    asked = await fleet.route()
    assert asked.notes.otherwise is not None
    assert asked.notes.otherwise.retry_after == 3.0
    assert "breaker open for another 3.0 s; breaker open for another 5.0 s" in asked.notes.otherwise.message


async def test_who_waits_for_a_probe_goes_on_when_its_answer_begins(make_fleet: Any) -> None:
    """A stream may run for minutes: others need not wait for its end, only for its first byte."""
    fleet = make_fleet(admission=Admission(QueueLimits(tick_s=600.0, max_wait_s=600.0)))
    a = fleet.add("a")
    await break_open(fleet, a)
    probe = await fleet.route()
    waits = asyncio.create_task(fleet.route())
    also = asyncio.create_task(fleet.route())
    await asyncio.sleep(0)
    assert fleet.router._admission.depths() == {"m": 2}
    probe.lease.first_byte()
    second = await waits
    assert (second.reason, second.notes.probe) == ("last_resort", True)
    # the first is still running: its end closes the breaker, and frees no second place for a probe
    end(fleet, probe, Outcome.CANCELLED)
    await asyncio.sleep(0)
    assert not also.done()
    second.lease.first_byte()
    third = await also
    end(fleet, second, Outcome.OK)
    assert fleet.guards.rests_for(a, fleet.now) is None
    end(fleet, third, Outcome.OK)


async def test_who_waited_in_vain_is_told_503(make_fleet: Any) -> None:
    fleet = make_fleet(admission=Admission(QueueLimits(max_wait_s=0.0)))
    await break_open(fleet, fleet.add("a"))
    await fleet.route()
    with pytest.raises(Unavailable, match="breaker open: a probe is on its way") as error:
        await fleet.route()
    assert error.value.status == 503


async def test_somebody_trusted_and_full_is_waited_for(fleet: Any) -> None:
    fleet.add("a", max_requests=1)
    b = fleet.add("b")
    await break_open(fleet, b)
    await fleet.route()
    with pytest.raises(Overloaded, match="every worker of model 'm' is full"):
        await fleet.route()


async def test_one_that_was_tried_is_not_asked_again(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    await break_open(fleet, a)
    await break_open(fleet, b)
    assert (await fleet.route(exclude=frozenset({a}))).worker == b
    with pytest.raises(Unavailable, match="breaker open"):
        await fleet.route(exclude=frozenset({a, b}))


async def test_one_that_failed_once_is_trusted_still(fleet: Any) -> None:
    """Its request gets its error; a worker that rests is not asked for that."""
    a, b = fleet.add("a"), fleet.add("b")
    await break_open(fleet, b)
    end(fleet, await fleet.route(), Outcome.UPSTREAM_ERROR)
    with pytest.raises(Overloaded, match="no other worker"):
        await fleet.route(exclude=frozenset({a}))


async def test_the_ejected_are_asked_as_if_they_were_not(make_fleet: Any) -> None:
    guards = Guards(breaker=BreakerLimits(failures=3), outliers=OutlierLimits(window_s=1.0, min_requests=4))
    fleet = make_fleet(guards=guards)
    a, b = fleet.add("a"), fleet.add("b")
    fleet.router.upkeep.do(fleet.now)
    for outcome in [Outcome.UPSTREAM_ERROR, Outcome.OK] * 4:
        end(fleet, await fleet.route(exclude=frozenset({b})), outcome)
        end(fleet, await fleet.route(exclude=frozenset({a})), Outcome.OK)
    fleet.now += 2.0
    assert (await fleet.route()).worker == b
    assert guards.refusal(a, fleet.now) == "ejected: it fails much more often than its peers"
    assert guards.retry_in(a, fleet.now) == 30.0
    await break_open(fleet, b)
    routes = [await fleet.route() for _ in range(3)]
    assert {(r.worker, r.reason, r.notes.probe) for r in routes} == {(a, "last_resort", False)}


async def test_one_that_fails_its_health_checks_comes_last_and_alone(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.registry.set_health(a, False, "/health answers 500")
    await break_open(fleet, b)
    first, second = await fleet.route(), await fleet.route(exclude=frozenset({b}))
    assert [(r.worker, r.reason) for r in (first, second)] == [(b, "last_resort"), (a, "last_resort")]
    with pytest.raises(Unavailable, match="unhealthy: /health answers 500"):
        await fleet.route(exclude=frozenset({b}))
    second.lease.release()
    assert (await fleet.route(exclude=frozenset({b}))).worker == a


async def test_whom_its_source_withholds_or_its_operator_drains_is_never_asked(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.registry.withhold(a, "its pod is not ready")
    fleet.registry.drain(b)
    with pytest.raises(Unavailable, match="draining: drained by the operator; unhealthy: its pod is not"):
        await fleet.route()


async def test_an_overloaded_one_is_left_alone(fleet: Any) -> None:
    a = fleet.add("a")
    await break_open(fleet, a)
    end(fleet, await fleet.route(), Outcome.BUSY)
    with pytest.raises(Unavailable) as error:
        await fleet.route()
    assert error.value.retry_after == 1.0
    fleet.now += 1.0
    assert (await fleet.route()).worker == a
