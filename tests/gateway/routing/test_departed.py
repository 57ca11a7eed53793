"""A worker leaves while it serves: its requests end as they would have, and nothing of it is kept then."""

from __future__ import annotations

import pytest

from gateway.routing.route import Outcome
from gateway.types import Usage, WorkerId
from tests.gateway.routing.conftest import Fleet

pytestmark = pytest.mark.anyio

TOKENS = list(range(1000))


def kept(fleet: Fleet, worker: WorkerId) -> list[str]:
    """What still knows it."""
    router, guards = fleet.router, fleet.guards
    books = {
        "rates": router.rates._sums,
        "bounds": router._bounds._learned,
        "drifts": router.feedback._drifts,
        "last blocks": router._last_blocks._delivered,
        "guards": guards._guards,
        "outliers": guards._outliers._records,
        "suspects": guards.suspects,
        "starting": guards.starting,
        "loads": fleet.board._loads,
        "index": fleet.index._workers,
    }
    return [name for name, book in books.items() if worker in book]


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.BUSY, Outcome.UPSTREAM_ERROR, Outcome.CANCELLED])
async def test_what_its_last_requests_teach_is_not_kept(outcome: Outcome) -> None:
    fleet = Fleet()
    worker = fleet.add("a")
    for _ in range(10):  # so that all of the books know it
        route = await fleet.route(TOKENS)
        fleet.router.finish(route, Outcome.OK, Usage(1000, 1, 0), 0.5)
        route.lease.release()
    assert {"rates", "drifts", "guards", "outliers", "loads", "index"} <= set(kept(fleet, worker))
    route = await fleet.route(TOKENS)
    fleet.registry.remove(worker)
    assert kept(fleet, worker) == []
    assert fleet.board.still_serves(worker)
    route.lease.first_byte()
    fleet.router.finish(route, outcome, Usage(1000, 1, 992), 0.5, retry_after=7.0)
    assert kept(fleet, worker) == []
    route.lease.release()
    assert not fleet.board.still_serves(worker)


async def test_nor_does_a_probe_that_answers_bring_its_breaker_back() -> None:
    fleet = Fleet()
    worker = fleet.add("a")
    for _ in range(3):
        route = await fleet.route(TOKENS)
        fleet.router.finish(route, Outcome.UPSTREAM_ERROR, None, None)
        route.lease.release()
    fleet.now += 6
    probe = await fleet.route(TOKENS)
    assert probe.notes.probe
    fleet.registry.remove(worker)
    probe.lease.first_byte()
    assert kept(fleet, worker) == []
    fleet.router.finish(probe, Outcome.OK, None, None)
    probe.lease.release()
    assert kept(fleet, worker) == []


async def test_one_that_came_back_under_its_name_is_learned_from() -> None:
    fleet = Fleet()
    fleet.add("a")
    route = await fleet.route(TOKENS)
    fleet.registry.remove(route.worker)
    worker = fleet.add("a")
    fleet.router.finish(route, Outcome.BUSY, None, None, retry_after=7.0)
    assert fleet.guards.busy_for(worker, fleet.now) == 7.0
    route.lease.release()
