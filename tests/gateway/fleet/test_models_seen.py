"""What was served stays known for a while: 503 in place of 404."""

from __future__ import annotations

import pytest

from gateway.fleet.load import LoadBoard
from gateway.fleet.models_seen import ModelsSeen, Sight
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo, WorkerSpec
from gateway.types import WorkerId

A, B = "http://a:1", "http://b:1"


class Fleet:
    """A registry with a clock that the test sets."""

    def __init__(self, *, keep_s: float = 100.0, most: int = 10) -> None:
        self.now = 1000.0
        self.seen = ModelsSeen(lambda: self.now, keep_s=keep_s, most=most)
        self.registry = Registry(LoadBoard(), lambda: 0.0, seen=self.seen)

    def serve(self, url: str, model: str, *adapters: str) -> None:
        if self.registry.get(WorkerId(url)) is None:
            self.registry.add(WorkerSpec(url))
        self.registry.learned(WorkerId(url), Learned(EngineInfo(model, adapters=adapters)))

    def leave(self, url: str) -> None:
        assert self.registry.remove(WorkerId(url))


def test_a_model_is_known_for_a_while_after_its_last_worker() -> None:
    fleet = Fleet()
    fleet.serve(A, "m", "lora")
    fleet.now += 5000  # served all the time: its age counts from its last moment
    fleet.leave(A)
    for name, adapter in (("m", ""), ("lora", "lora")):
        target = fleet.registry.resolve(name)
        assert target is not None
        assert (target.model, target.adapter, target.workers) == ("m", adapter, ())
    assert fleet.registry.names() == ["lora", "m"]
    assert fleet.registry.resolve("never") is None
    nameless = fleet.registry.resolve("")
    assert nameless is not None
    assert nameless.model == "m"
    fleet.now += 99.9
    assert fleet.registry.resolve("m") is not None
    fleet.now += 0.2
    assert (fleet.registry.resolve("m"), fleet.registry.names()) == (None, [])


def test_another_model_at_the_same_address_takes_nothing_away() -> None:
    fleet = Fleet()
    fleet.serve(A, "old")
    fleet.now += 5000
    fleet.serve(A, "new")
    assert fleet.registry.names() == ["new", "old"]
    nameless = fleet.registry.resolve("")
    assert nameless is not None
    assert nameless.model == "new"  # what is served now stands alone


def test_an_adapter_that_was_unloaded_is_gone() -> None:
    fleet = Fleet()
    fleet.serve(A, "m", "lora")
    fleet.serve(A, "m")
    assert fleet.registry.resolve("lora") is None
    assert fleet.registry.names() == ["m"]


def test_an_adapter_whose_worker_left_is_known_though_its_model_is_served_elsewhere() -> None:
    fleet = Fleet()
    fleet.serve(A, "m", "lora")
    fleet.serve(B, "m")
    fleet.leave(A)
    target = fleet.registry.resolve("lora")
    assert target is not None  # 503: it may come back, as a pod that is moved does
    assert (target.model, target.adapter, target.workers) == ("m", "lora", ())
    nameless = fleet.registry.resolve("")
    assert nameless is not None
    assert (nameless.name, len(nameless.workers)) == ("m", 1)
    fleet.now += 101
    fleet.serve(B, "m")
    assert fleet.registry.resolve("lora") is None


def test_an_adapter_is_unloaded_when_the_last_engine_says_so() -> None:
    fleet = Fleet()
    fleet.serve(A, "m", "lora")
    fleet.serve(B, "m", "lora")
    fleet.serve(A, "m")
    target = fleet.registry.resolve("lora")
    assert target is not None
    assert [worker.id for worker in target.workers] == [B]
    fleet.serve(B, "m")
    assert fleet.registry.resolve("lora") is None
    fleet.leave(A)
    fleet.leave(B)
    assert fleet.registry.names() == ["m"]
    fleet.now += 1
    fleet.serve(A, "m", "lora")  # loaded again
    fleet.leave(A)
    assert fleet.registry.names() == ["lora", "m"]


def test_what_was_unloaded_is_so_for_every_replica() -> None:
    """One learns it; another, which has not asked yet, hears of it through what they share."""
    one, other = Fleet(), Fleet()
    for fleet in (one, other):
        fleet.serve(A, "m", "lora")
    other.leave(A)
    assert other.registry.resolve("lora") is not None
    one.serve(A, "m")
    other.seen.take(one.seen.current())
    assert other.registry.resolve("lora") is None
    assert other.registry.resolve("m") is not None


def test_names_are_bounded_and_the_oldest_go() -> None:
    fleet = Fleet(most=2)
    for n in range(4):
        fleet.now += 1
        fleet.serve(f"http://w{n}:1", f"m{n}")
    for n in range(4):
        fleet.leave(f"http://w{n}:1")
        fleet.now += 1
    assert fleet.registry.names() == ["m2", "m3"]


@pytest.mark.parametrize(("at", "known"), [(899.0, False), (901.0, True)])
def test_what_others_saw_counts_by_its_age(at: float, known: bool) -> None:
    fleet = Fleet()
    fleet.seen.take({"m": Sight("m", at)})
    assert (fleet.registry.resolve("m") is not None) is known


def test_nothing_is_remembered_for_no_time() -> None:
    fleet = Fleet(keep_s=0)
    fleet.serve(A, "m")
    fleet.leave(A)
    assert (fleet.registry.resolve("m"), len(fleet.seen)) == (None, 0)
