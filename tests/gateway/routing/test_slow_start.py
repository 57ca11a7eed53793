"""A worker that comes back gets a growing part of its fair share, from the first request on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, TypeAlias

import pytest

from gateway.fleet.breaker import BreakerLimits, Verdict
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.explain import explain
from gateway.routing.registry import make_policy
from gateway.routing.route import Outcome
from gateway.types import WorkerId

pytestmark = pytest.mark.anyio
TURNS = ["estimated_ttft", "round_robin"]
POLICIES = [*TURNS, "least_requests", "power_of_two", "additive", "product"]
Strangers: TypeAlias = Callable[[], list[int]]


def guarded() -> Guards:
    """Thirty seconds from a fifth to the whole; a breaker that one failure opens for five."""
    return Guards(
        breaker=BreakerLimits(failures=1, open_s=5.0),
        health=HealthLimits(slow_start_s=30.0, slow_start_from=0.2, healthy_after=1, unhealthy_after=1),
    )


@pytest.fixture
def strangers() -> Strangers:
    """Prompts of 64 tokens that nobody has seen."""
    numbers = count(1)
    return lambda: [next(numbers)] * 64


async def sequential(
    fleet: Any, strangers: Strangers, requests: int, *, every: float = 0.1
) -> list[WorkerId]:
    """Where each goes; the one before has always been answered."""
    went = []
    for _ in range(requests):
        route = await fleet.route(strangers())
        fleet.router.finish(route, Outcome.OK, None, None)
        route.lease.release()
        went.append(route.worker)
        fleet.now += every
    return went


def breaks_and_returns(fleet: Any, worker: WorkerId) -> None:
    """Its breaker opens, and five seconds later a probe closes it."""
    fleet.guards.record(worker, Verdict.FAILURE, fleet.now)
    fleet.now += 5.0
    assert fleet.guards.begin(worker, fleet.now)
    fleet.guards.record(worker, Verdict.SUCCESS, fleet.now, probe=True)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_share_grows_from_the_first_request_on(
    make_fleet: Any, strangers: Strangers, policy: str
) -> None:
    fleet = make_fleet(policy=make_policy(policy, random=Random(1)), guards=guarded())
    _, b = fleet.add("a"), fleet.add("b")
    await sequential(fleet, strangers, 20)
    breaks_and_returns(fleet, b)
    # half of a fifth of the first dozen is 1.2; the part grows by 0.8 in 30 s, so of a hundred in 10 s
    # it gets 50 × 0.33, then 50 × 0.60 and 50 × 0.87
    first = await sequential(fleet, strangers, 12)
    assert first.count(b) == 1
    rest = first + await sequential(fleet, strangers, 288)
    shares = [rest[start : start + 100].count(b) for start in (0, 100, 200)]
    if policy in TURNS:
        assert shares == [pytest.approx(16.6, abs=1), pytest.approx(29.9, abs=1), pytest.approx(43.3, abs=1)]
    else:  # when it may, a draw among idle workers decides
        assert all(part / 2 <= got <= part + 1 for got, part in zip(shares, (16.6, 29.9, 43.3), strict=True))
    assert b in await sequential(fleet, strangers, 20)


async def test_at_once_too(make_fleet: Any, strangers: Strangers) -> None:
    fleet = make_fleet(guards=guarded())
    a, b = fleet.add("a"), fleet.add("b")
    breaks_and_returns(fleet, b)
    went = [(await fleet.route(strangers())).worker for _ in range(12)]
    assert [went.count(a), went.count(b)] == [11, 1]


async def test_with_little_traffic_it_gets_something(make_fleet: Any, strangers: Strangers) -> None:
    """One request in five seconds, of four workers: 0.25 × (0.20 + 0.33 + 0.47 + 0.60 + 0.73) + ½ is 1.08."""
    fleet = make_fleet(guards=guarded())
    *_, d = (fleet.add(name) for name in "abcd")
    breaks_and_returns(fleet, d)
    assert (await sequential(fleet, strangers, 6, every=5.0)).count(d) == 1


async def test_after_health_checks_too(make_fleet: Any, strangers: Strangers) -> None:
    fleet = make_fleet(guards=guarded())
    _, b = fleet.add("a"), fleet.add("b")
    health = fleet.guards.of(b).health
    for passed in (True, False, True):
        health.record(passed, fleet.now)
        fleet.registry.set_health(b, passed)
    assert (await sequential(fleet, strangers, 12)).count(b) == 1


async def test_what_only_it_holds_goes_there(make_fleet: Any) -> None:
    fleet = make_fleet(guards=guarded())
    a, b = fleet.add("a"), fleet.add("b")
    prompt = list(range(2048))
    fleet.store(b, prompt)
    breaks_and_returns(fleet, b)
    went = await sequential(fleet, lambda: prompt, 4)
    assert went == [b] * 4
    fleet.store(a, prompt)
    assert (await sequential(fleet, lambda: prompt, 4)) == [a] * 4


async def test_it_takes_what_nobody_else_can(make_fleet: Any, strangers: Strangers) -> None:
    fleet = make_fleet(guards=guarded())
    _, b = fleet.add("a", max_requests=1), fleet.add("b")
    breaks_and_returns(fleet, b)
    routes = [await fleet.route(strangers()) for _ in range(5)]
    assert [route.worker for route in routes[1:]] == [b] * 4


async def test_explain_says_so(make_fleet: Any, strangers: Strangers) -> None:
    fleet = make_fleet(guards=guarded())
    a, b = fleet.add("a"), fleet.add("b")
    breaks_and_returns(fleet, b)
    request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[strangers()])
    for _ in range(3):  # asking changes nothing
        told = await explain(fleet.router, request)
    assert (told.chosen, told.workers[1].worker) == (a, b)
    assert told.workers[1].verdict == "slow start: it has come back, and had its share for now"
    assert told.workers[1].score is None


async def test_it_is_over_when_its_time_is(make_fleet: Any, strangers: Strangers) -> None:
    fleet = make_fleet(policy=make_policy("round_robin", random=Random(1)), guards=guarded())
    a, b = fleet.add("a"), fleet.add("b")
    breaks_and_returns(fleet, b)
    fleet.now += 30.0
    assert not fleet.guards.held_back(b, fleet.now)
    went = await sequential(fleet, strangers, 10)
    assert [went.count(a), went.count(b)] == [5, 5]
    assert not fleet.guards.starting
