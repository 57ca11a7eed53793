"""Who is in the fleet, in which state, and who serves a name."""

from dataclasses import dataclass, field

import pytest

from gateway.errors import ConfigError
from gateway.fleet.load import LoadBoard
from gateway.fleet.pool import pool_unit
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec, WorkerState
from gateway.types import WorkerId

A, B = WorkerId("http://a:1"), WorkerId("http://b:1")


@dataclass
class Told:
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    def added(self, worker: Worker) -> None:
        self.calls.append(("added", worker.id, worker.state.value))

    def changed(self, worker: Worker) -> None:
        self.calls.append(("changed", worker.id, worker.state.value))

    def removed(self, worker: Worker) -> None:
        self.calls.append(("removed", worker.id, worker.state.value))


def make(**options: object) -> tuple[Registry, LoadBoard]:
    board = LoadBoard()
    return Registry(board, lambda: 7.0, **options), board  # type: ignore[arg-type]


def ready(registry: Registry, url: str, info: EngineInfo, **spec: object) -> Worker:
    worker = registry.add(WorkerSpec(url, **spec))  # type: ignore[arg-type]
    registry.learned(worker.id, Learned(info))
    registry.set_health(worker.id, True)
    return worker


def test_a_workers_life_is_told_in_order() -> None:
    registry, board = make()
    told = Told()
    registry.subscribe(told)
    worker = ready(registry, A, EngineInfo("m", capacity_blocks=48), max_requests=3)
    assert (worker.state, worker.since) == (WorkerState.READY, 7.0)
    load = board.get(A)
    assert load is not None
    assert (load.max_requests, load.capacity_blocks) == (3, 48)
    assert registry.drain(A)
    registry.set_health(A, False, "gone")  # remembered, but an operator's drain shows
    assert (worker.state, worker.reason) == (WorkerState.DRAINING, "drained by the operator")
    assert registry.resume(A)
    assert (worker.state, worker.reason) == (WorkerState.UNHEALTHY, "gone")
    assert registry.remove(A)
    assert board.get(A) is None
    assert not registry.remove(A)
    assert not registry.drain(A)
    assert told.calls == [
        ("added", A, "starting"),
        ("changed", A, "starting"),
        ("changed", A, "ready"),
        ("changed", A, "draining"),
        ("changed", A, "unhealthy"),
        ("removed", A, "unhealthy"),
    ]


def test_a_late_listener_hears_of_those_who_are_in() -> None:
    registry, _ = make()
    registry.add(WorkerSpec(A))
    told = Told()
    registry.subscribe(told)
    assert told.calls == [("added", A, "starting")]


def test_no_worker_twice() -> None:
    registry, _ = make()
    registry.add(WorkerSpec(A))
    with pytest.raises(ConfigError, match="registered already"):
        registry.add(WorkerSpec(A))
    registry.add(WorkerSpec(A, dp_rank=1))  # another rank is another worker


def test_learned_endpoints_fill_what_the_operator_left_open() -> None:
    registry, _ = make()
    worker = registry.add(WorkerSpec(A))
    registry.learned(A, Learned(EngineInfo("m"), "tcp://a:5557", "tcp://a:5558", "kv"))
    assert (worker.spec.events, worker.spec.replay, worker.spec.topic) == (
        "tcp://a:5557",
        "tcp://a:5558",
        "kv",
    )
    worker = registry.add(WorkerSpec(B, events="tcp://b:1"))
    registry.learned(B, Learned(EngineInfo("m"), "tcp://x:5557", "tcp://x:5558", None))
    assert (worker.spec.events, worker.spec.replay) == ("tcp://b:1", None)


def test_adapters_of_sglang_are_asked_for_behind_their_model() -> None:
    registry, _ = make()
    info = EngineInfo("base", adapters=("french",), adapters_by_colon=True)
    ready(registry, A, info)
    targets = registry.targets()
    assert sorted(targets) == ["base", "base:french", "french"]
    assert targets["french"] is targets["base:french"]
    assert (targets["french"].name, targets["french"].adapter) == ("base:french", "french")
    ready(registry, B, EngineInfo("base", adapters=("french",)))  # who knows it by its own name alone
    assert registry.targets()["french"].name == "french"


def test_names_aliases_and_adapters() -> None:
    registry, _ = make(aliases={"gpt-4": "base", "fr": "french", "soon": "later"}, declared=["cold"])
    a = ready(registry, A, EngineInfo("base", adapters=("french",), served_names=("big",)))
    b = ready(registry, B, EngineInfo("base"))
    base = registry.resolve("base")
    assert base is not None
    assert (base.name, base.model, base.adapter, base.unit, base.workers) == ("base", "base", "", 16, (a, b))
    french = registry.resolve("french")
    assert french is not None
    assert (french.name, french.model, french.adapter, french.workers) == ("french", "base", "french", (a,))
    big = registry.resolve("big")
    assert big is not None
    assert (big.name, big.model, big.adapter, big.workers) == ("big", "base", "", (a,))
    assert registry.resolve("gpt-4") is base
    assert registry.resolve("fr") is french
    assert registry.resolve("nobody") is None
    for name in ("cold", "soon"):
        scaled_to_zero = registry.resolve(name)
        assert scaled_to_zero is not None
        assert scaled_to_zero.workers == ()
    # an adapter loaded at run time
    registry.learned(B, Learned(EngineInfo("base", adapters=("french", "latin"))))
    french, latin = registry.resolve("french"), registry.resolve("latin")
    assert french is not None
    assert latin is not None
    assert (french.workers, latin.workers) == ((a, b), (b,))


def test_no_name_is_enough_where_there_is_one_model() -> None:
    registry, _ = make()
    assert registry.resolve("") is None
    ready(registry, A, EngineInfo("one"))
    target = registry.resolve("")
    assert target is not None
    assert target.model == "one"
    ready(registry, B, EngineInfo("two"))
    assert registry.resolve("") is None


def test_a_starting_worker_makes_its_model_known() -> None:
    registry, _ = make()
    registry.add(WorkerSpec(A, model="m"))
    target = registry.resolve("m")
    assert target is not None
    assert [w.state for w in target.workers] == [WorkerState.STARTING]


@pytest.mark.parametrize(
    ("sizes", "unit"), [([16, 16], 16), ([16, 32, 128], 16), ([64], 16), ([24, 24], 24), ([1], 1), ([], 16)]
)
def test_the_unit_of_a_pool(sizes: list[int], unit: int) -> None:
    assert pool_unit(sizes) == unit


def test_block_sizes_that_cannot_share_a_pool_are_refused() -> None:
    registry, _ = make()
    ready(registry, A, EngineInfo("m", block_size=16))
    worker = registry.add(WorkerSpec(B))
    with pytest.raises(ConfigError, match=r"block sizes \[16, 24\] can't share one pool"):
        registry.learned(B, Learned(EngineInfo("m", block_size=24)))
    assert worker.state is WorkerState.UNHEALTHY
    assert "can't share one pool" in worker.reason
    target = registry.resolve("m")
    assert target is not None
    assert (target.unit, [w.id for w in target.workers]) == (16, [A])
    with pytest.raises(ConfigError, match="can't join the pool"):
        registry.add(WorkerSpec("http://c:1", model="m", block_size=24))
    assert registry.get(WorkerId("http://c:1")) is None
    registry.learned(B, Learned(EngineInfo("other", block_size=24)))  # a pool of its own is fine
    assert registry.unit_of("other") == 24


def test_model_entries_are_a_union_with_fields_kept() -> None:
    registry, _ = make(aliases={"gpt-4": "base", "none": "nowhere"})
    entry: dict[str, object] = {"id": "base", "max_model_len": 512, "odd": [1]}
    other: dict[str, object] = {"id": "french", "parent": "base"}
    ready(registry, A, EngineInfo("base", model_entries=(entry,)))
    ready(registry, B, EngineInfo("base", model_entries=({**entry, "odd": [2]}, other)))
    hidden = registry.add(WorkerSpec("http://c:1"))
    registry.learned(hidden.id, Learned(EngineInfo("c", model_entries=({"id": "c"},))))
    assert registry.model_entries() == [entry, other, {**entry, "id": "gpt-4", "parent": "base"}]


def test_weights() -> None:
    registry, _ = make()
    worker = registry.add(WorkerSpec(A))
    assert registry.set_weight(A, 2.0)
    assert worker.spec.weight == 2.0
    assert not registry.set_weight(B, 2.0)
    for wrong in (0.0, 5e-324, 0.00099, 1000.1, 1e308, float("nan")):
        with pytest.raises(ConfigError, match=r"a number from 0\.001 to 1,000 is wanted"):
            registry.set_weight(A, wrong)
    for least_and_most in (0.001, 1000.0):
        assert registry.set_weight(A, least_and_most)
