"""Who waits at a worker that says nothing any more is asked elsewhere, if somebody else can answer."""

from __future__ import annotations

from gateway.fleet.breaker import Verdict
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.relief import Relief
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec

HUNG, OTHER = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


class Fleet:
    def __init__(self) -> None:
        self.guards = Guards()
        self.registry = Registry(LoadBoard(), lambda: 0.0)
        self.given_up: list[tuple[str, float]] = []
        self.relief = Relief(self.registry, self.guards, lambda: 0.0, self, 6.0)

    def waits(self, url: str) -> bool:
        return url == HUNG

    def give_up(self, url: str, why: str, silent_s: float) -> int:
        self.given_up.append((url, silent_s))
        return 1

    def add(self, url: str, info: EngineInfo, healthy: bool = True) -> Worker:
        worker = self.registry.add(WorkerSpec(url))
        self.registry.learned(worker.id, Learned(info))
        self.registry.set_health(worker.id, healthy)
        return worker


def relieved(fleet: Fleet, info: EngineInfo) -> bool:
    fleet.relief.relieve(fleet.add(HUNG, info, healthy=False))
    return fleet.given_up == [(HUNG, 6.0)]


def test_where_another_worker_serves_all_that_it_serves() -> None:
    fleet = Fleet()
    fleet.add(OTHER, EngineInfo("m", adapters=("a", "b")))
    assert relieved(fleet, EngineInfo("m", adapters=("a",)))


def test_not_where_nobody_could_take_its_place() -> None:
    alone, lacking, unwell, refused = Fleet(), Fleet(), Fleet(), Fleet()
    assert not relieved(alone, EngineInfo("m"))
    lacking.add(OTHER, EngineInfo("m"))
    assert not relieved(lacking, EngineInfo("m", adapters=("a",)))
    unwell.add(OTHER, EngineInfo("m"), healthy=False)
    assert not relieved(unwell, EngineInfo("m"))
    other = refused.add(OTHER, EngineInfo("m"))
    for _ in range(3):
        refused.guards.record(other.id, Verdict.FAILURE, 0.0)
    assert not relieved(refused, EngineInfo("m"))
    assert alone.given_up == lacking.given_up == unwell.given_up == refused.given_up == []


def test_another_rank_of_the_same_server_is_no_other() -> None:
    fleet = Fleet()
    ranks = [fleet.registry.add(WorkerSpec(HUNG, dp_rank=rank)) for rank in (0, 1)]
    for worker, healthy in zip(ranks, (False, True), strict=True):
        fleet.registry.learned(worker.id, Learned(EngineInfo("m")))
        fleet.registry.set_health(worker.id, healthy)
    fleet.relief.relieve(ranks[0])
    assert fleet.given_up == []
