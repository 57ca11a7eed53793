"""Admission by the expected time to first token, figures by hand."""

from random import Random
from typing import Any

import pytest

from gateway.errors import Overloaded
from gateway.fleet.load import LoadVector, WorkerLoad
from gateway.fleet.rates import MIN_SAMPLES, PrefillRates
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.explain import explain
from gateway.routing.in_time import Expected, expected, first_in_time
from gateway.routing.registry import make_policy
from gateway.types import WorkerId

PROMPT = list(range(1000, 1200))
REQUEST = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT])


def measured(rates: PrefillRates, worker: WorkerId, tokens_per_second: int) -> None:
    for _ in range(MIN_SAMPLES):
        rates.observe(worker, 1000, 1000 / tokens_per_second)


def test_what_waits_and_what_is_left_to_compute_over_the_measured_speed() -> None:
    rates = PrefillRates()
    load = WorkerLoad(WorkerId("a"), waiting_tokens=300, peer_waiting_tokens=200)
    assert expected(load, 250, rates) is None
    measured(rates, load.worker, 1000)
    time = expected(load, 250, rates)
    assert time is not None
    assert (time.wait, time.own, time.ttft) == pytest.approx((0.5, 0.25, 0.75))


def test_in_time() -> None:
    assert Expected(wait=1.0, own=1.0).in_time(2.0)
    assert not Expected(wait=1.5, own=1.0).in_time(2.0)
    # it could not be in time anywhere: its wait decides
    assert Expected(wait=2.0, own=3.0).in_time(2.0)
    assert not Expected(wait=2.5, own=3.0).in_time(2.0)


def test_the_winner_or_the_next_best_that_is_in_time() -> None:
    soon, late = Expected(0.0, 1.0), Expected(9.0, 1.0)
    assert first_in_time([1.0, 2.0, 3.0], [soon, soon, soon], 0, 2.0) == 0
    assert first_in_time([1.0, 3.0, 2.0], [late, soon, soon], 0, 2.0) == 2
    # nobody knows of the second one
    assert first_in_time([1.0, 3.0, 2.0], [late, None, late], 0, 2.0) == 1
    assert first_in_time([1.0, 2.0], [late, late], 0, 2.0) is None


@pytest.mark.anyio
async def test_a_request_that_would_be_late_everywhere_is_refused(make_fleet: Any) -> None:
    # a policy that looks at requests alone would send it to a
    fleet = make_fleet(policy=make_policy("least_requests", random=Random(1)))
    a, b = fleet.add("a"), fleet.add("b")
    for worker in (a, b):
        measured(fleet.router.rates, worker, 1000)
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 6000), b: LoadVector(2, 2000)})
    assert (await fleet.route(PROMPT)).worker == a
    fleet.router.max_ttft = 3.0
    # 6000 and the 200 of the one that went there, and 8 that it does not share; 2000 and all 200
    told = await explain(fleet.router, REQUEST)
    assert (told.chosen, [w.expected_ttft_s for w in told.workers]) == (
        b,
        [pytest.approx(2.2), pytest.approx(6.208)],
    )
    assert told.workers[1].verdict == "first token expected in 6.2 s, later than 3 s"
    assert (await fleet.route(PROMPT)).worker == b
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 6000), b: LoadVector(2, 4000)})
    told = await explain(fleet.router, REQUEST)
    assert (told.chosen, told.reason) == (None, "")
    with pytest.raises(Overloaded, match=r"within 3 s, the soonest would in 4[.]2 s") as refused:
        await fleet.route(PROMPT)
    assert refused.value.retry_after == pytest.approx(1.208)
    assert ("refused", "m", "Overloaded") in fleet.watching.seen
    # who was tried elsewhere already has waited enough
    assert (await fleet.route(PROMPT, exclude=frozenset([a]))).worker == b
    # a prompt of 5 s by itself is judged by its wait
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 6000), b: LoadVector(2, 1000)})
    assert (await fleet.route(list(range(5000)))).worker == b
