"""Listings of registrations, and the fleet that follows from them."""

from __future__ import annotations

from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.discovery import Reconciler
from gateway.fleet.sharing.registrations import (
    Listing,
    Registration,
    RegistrationState,
    decode,
    encode,
)
from gateway.fleet.worker import EngineInfo, WorkerSpec
from gateway.types import WorkerId

READY, DRAINING, GONE = RegistrationState
A = WorkerSpec("http://a:1", events="tcp://a:2", replay="tcp://a:3")
B = WorkerSpec("http://b:1")


def fleet() -> tuple[Registry, Reconciler]:
    registry = Registry(LoadBoard(), lambda: 0.0)
    return registry, Reconciler(registry)


def listing(*registered: Registration, lapsed: tuple[WorkerId, ...] = ()) -> Listing:
    return Listing(registered, lapsed)


def healthy(registry: Registry, spec: WorkerSpec) -> None:
    registry.learned(spec.id, Learned(EngineInfo("m", model_entries=({"id": "m"},))))
    registry.set_health(spec.id, True)


def states(registry: Registry) -> dict[str, str]:
    return {worker.id: worker.state.value for worker in registry.workers()}


def test_who_registers_joins_and_who_says_goodbye_leaves() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY), Registration(B, READY)))
    assert states(registry) == {A.id: "starting", B.id: "starting"}
    reconciler.apply(listing(Registration(A, GONE), Registration(B, READY)))
    assert states(registry) == {B.id: "starting"}


def test_draining_comes_and_goes() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY)))
    healthy(registry, A)
    reconciler.apply(listing(Registration(A, DRAINING)))
    assert states(registry) == {A.id: "draining"}
    reconciler.apply(listing(Registration(A, READY)))
    assert states(registry) == {A.id: "ready"}


def test_what_an_operator_drained_stays_drained() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY)))
    registry.drain(A.id)
    reconciler.apply(listing(Registration(A, READY)))
    assert states(registry) == {A.id: "draining"}


def test_silence_costs_no_worker_whose_engine_answers() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY), Registration(B, READY)))
    healthy(registry, A)
    healthy(registry, B)
    reconciler.apply(listing(lapsed=(A.id,)))  # of B not even the name is left: Redis was emptied
    assert states(registry) == {A.id: "ready", B.id: "ready"}
    registry.set_health(A.id, False, "connection refused")
    reconciler.apply(listing(lapsed=(A.id,)))
    assert states(registry) == {B.id: "ready"}


def test_an_agent_that_dies_while_it_drains_takes_its_worker_along() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY)))
    healthy(registry, A)
    reconciler.apply(listing(Registration(A, DRAINING)))
    reconciler.apply(listing(lapsed=(A.id,)))
    assert states(registry) == {}


def test_workers_of_the_operator_are_left_alone() -> None:
    registry, reconciler = fleet()
    registry.add(A)
    reconciler.apply(listing(Registration(A, READY)))
    assert (len(reconciler), reconciler.refused) == (0, 1)
    reconciler.apply(listing(Registration(A, GONE)))
    assert states(registry) == {A.id: "starting"}
    reconciler.apply(listing())
    assert reconciler.refused == 0


def test_other_endpoints_make_another_worker_of_it() -> None:
    registry, reconciler = fleet()
    reconciler.apply(listing(Registration(A, READY)))
    moved = WorkerSpec("http://a:1", events="tcp://a:9", replay="tcp://a:10")
    reconciler.apply(listing(Registration(moved, READY)))
    worker = registry.get(A.id)
    assert worker is not None
    assert worker.spec == moved


def test_a_registration_survives_redis() -> None:
    spec = WorkerSpec(
        "http://a:1", "tcp://a:2", "tcp://a:3", "kv", "m", 32, 4096, max_requests=7, weight=2.5, dp_rank=1
    )
    registration = Registration(spec, DRAINING, "host:42")
    assert decode(encode(registration)) == registration
    assert decode(encode(Registration(B, READY))) == Registration(B, READY)


def test_what_no_agent_wrote_is_none() -> None:
    for data in (b"", b"[]", b'{"worker":{},"state":"ready"}', b'{"worker":{"url":"http://a"},"state":"odd"}',
                 b'{"worker":{"url":"ftp://a"},"state":"ready"}'):  # fmt: skip
        assert decode(data) is None
