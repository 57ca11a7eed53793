"""Lists, and the registry that follows from them."""

from __future__ import annotations

from gateway.fleet.discovery.members import Member, Members
from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo, WorkerSpec

A = WorkerSpec("http://10.0.0.1:8000")
B = WorkerSpec("http://10.0.0.2:8000")


def fleet() -> tuple[Registry, Members]:
    registry = Registry(LoadBoard(), lambda: 0.0)
    return registry, Members(registry, "test")


def healthy(registry: Registry, spec: WorkerSpec) -> None:
    registry.learned(spec.id, Learned(EngineInfo("m", model_entries=({"id": "m"},))))
    registry.set_health(spec.id, True)


def states(registry: Registry) -> dict[str, str]:
    return {worker.id: worker.state.value for worker in registry.workers()}


def test_who_is_listed_joins_and_who_is_not_leaves() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a"), Member(B, "b")])
    assert states(registry) == {A.id: "starting", B.id: "starting"}
    members.replace([Member(B, "b")])
    assert states(registry) == {B.id: "starting"}


def test_who_was_never_ready_stays_outside() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a", not_ready="its pod is not ready")])
    assert states(registry) == {}


def test_who_turns_unready_gets_nothing_new_and_keeps_its_place() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a")])
    healthy(registry, A)
    worker = registry.get(A.id)
    members.replace([Member(A, "a", not_ready="its pod is not ready")])
    assert worker is not None
    assert (worker.state.value, worker.reason) == ("unhealthy", "its pod is not ready")
    members.replace([Member(A, "a")])
    # the same worker, so its followers and what the index knows of it have stayed
    assert registry.get(A.id) is worker
    assert worker.state.value == "ready"


def test_another_pod_under_the_same_address_is_another_worker() -> None:
    registry, members = fleet()
    members.replace([Member(A, "old", life="uid-1")])
    old = registry.get(A.id)
    members.replace([Member(A, "new", life="uid-2")])
    assert registry.get(A.id) is not None
    assert registry.get(A.id) is not old


def test_a_new_weight_is_no_new_worker() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a")])
    worker = registry.get(A.id)
    members.replace([Member(WorkerSpec(A.url, weight=2.0), "a")])
    assert worker is registry.get(A.id)
    assert worker is not None
    assert worker.spec.weight == 2.0


def test_an_endpoint_listed_twice_counts_as_ready_if_it_is_so_once() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a", not_ready="no"), Member(A, "a"), Member(A, "a", not_ready="no")])
    assert states(registry) == {A.id: "starting"}


def test_workers_of_others_and_operators_words_are_left_alone() -> None:
    registry, members = fleet()
    registry.add(A)
    members.replace([Member(A, "a"), Member(B, "b")])
    registry.drain(B.id)
    members.replace([Member(B, "b")])
    assert states(registry) == {A.id: "starting", B.id: "draining"}
    members.replace([])
    assert states(registry) == {A.id: "starting"}


def test_an_empty_list_keeps_those_who_answer_where_it_may_be_an_outage() -> None:
    registry, members = fleet()
    members.replace([Member(A, "a"), Member(B, "b")])
    healthy(registry, A)
    members.keep_the_answering()
    assert states(registry) == {A.id: "ready"}
