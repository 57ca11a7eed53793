"""Two decide, one acts."""

from random import Random
from typing import Any

import pytest

from gateway.fleet.load import LoadVector, WorkerLoad
from gateway.routing.observer import NullObserver
from gateway.routing.policies.counting import LeastRequests, RoundRobin
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.policy import RequestShape
from gateway.routing.registry import make_policy
from gateway.routing.shadow import Shadow, watched
from gateway.types import WorkerId

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1200))


async def test_it_counts_how_often_they_differ_and_the_gain(make_fleet: Any) -> None:
    told: list[tuple[bool, float]] = []
    shadow = Shadow(LeastRequests(), EstimatedTTFT(), lambda agrees, gain: told.append((agrees, gain)))
    fleet = make_fleet(policy=shadow)
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 50, 0)})
    # least requests takes b: 200 tokens ahead; the shadow would take a: 50 + 8
    assert (await fleet.route(PROMPT)).worker == b
    assert told == [(False, 142.0)]
    fleet.board.drop_peer("r2")
    assert (await fleet.route(PROMPT)).worker == a  # now b has the request: both take a
    assert told[1] == (True, 0.0)
    assert (shadow.counts.decisions, shadow.counts.differing, shadow.counts.gain_tokens) == (2, 1, 142.0)
    assert (shadow.name, fleet.watching.seen[0][2]) == ("least_requests", "least_requests")


async def test_explaining_counts_nothing(make_fleet: Any) -> None:
    from gateway.prompt.base import Endpoint, PromptRequest
    from gateway.routing.explain import explain

    shadow = Shadow(LeastRequests(), EstimatedTTFT())
    fleet = make_fleet(policy=shadow)
    fleet.add("a")
    await explain(fleet.router, PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT]))
    assert shadow.counts.decisions == 0


async def test_without_a_preference_the_shadow_agrees(make_fleet: Any) -> None:
    shadow = Shadow(make_policy("power_of_two", random=Random(1)), EstimatedTTFT(balance_weight=0.0))
    fleet = make_fleet(policy=shadow)
    for name in "abcd":
        fleet.add(name)
    for i in range(4):
        (await fleet.route([i] * 10)).lease.release()
    assert (shadow.counts.decisions, shadow.counts.differing) == (4, 0)


async def test_an_observer_hears_whose_choice_it_was() -> None:
    class Heard(NullObserver):
        told: list[tuple[str, str, bool, float]]

        def shadowed(self, model: str, policy: str, agrees: bool, gain_tokens: float) -> None:
            self.told.append((model, policy, agrees, gain_tokens))

    heard = Heard()
    heard.told = []
    shadow = watched(RoundRobin(), LeastRequests(), "m", heard)
    loads = [WorkerLoad(WorkerId("a"), requests=1), WorkerLoad(WorkerId("b"))]
    shadow.chosen(RequestShape(100), loads, [40, 0], 0)
    # b has fewer requests, and would have to compute 100 tokens in place of 60
    assert heard.told == [("m", "least_requests", False, -40.0)]


async def test_policies_with_turns_keep_theirs(make_fleet: Any) -> None:
    fleet = make_fleet(policy=Shadow(RoundRobin(), RoundRobin()))
    a, b = fleet.add("a"), fleet.add("b")
    assert [(await fleet.route(PROMPT)).worker for _ in range(4)] == [a, b, a, b]
    assert fleet.router.policies.of("m").counts.differing == 0
