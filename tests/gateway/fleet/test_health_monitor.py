"""Active checks against real HTTP servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import UpstreamConnectError
from gateway.fleet.breaker import Verdict
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.fleet.load import LoadBoard
from gateway.fleet.monitor import HealthMonitor
from gateway.fleet.probe import EngineProbe, Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec, WorkerState
from gateway.upstream.client import UpstreamClient
from gateway.upstream.visitor import Visitor
from tests.faults import FaultyEngine, Turn, answers, control, raw

pytestmark = pytest.mark.anyio
LIMITS = HealthLimits(interval_s=0.01, unhealthy_after=3, healthy_after=2)


@pytest.fixture
async def ask() -> AsyncIterator[Visitor]:
    client = UpstreamClient()
    yield Visitor(client)
    await client.close()


def make(ask: Visitor, limits: HealthLimits = LIMITS, learn_every: int = 2) -> tuple[Registry, HealthMonitor]:
    registry = Registry(LoadBoard(), lambda: 0.0)
    monitor = HealthMonitor(
        registry,
        EngineProbe(ask, timeout=5.0),
        Guards(health=limits),
        clock=lambda: 0.0,
        random=lambda: 0.5,
        limits=limits,
        starting_interval_s=0.01,
        learn_every=learn_every,
    )
    return registry, monitor


def models(*names: str) -> tuple[int, bytes]:
    entries = [{"id": name, "parent": None if i == 0 else names[0]} for i, name in enumerate(names)]
    return 200, json.dumps({"data": entries}).encode()


async def test_a_timeline_check_by_check(ask: Visitor, engine: Any) -> None:
    server = engine({})
    registry, monitor = make(ask)
    worker = registry.add(WorkerSpec(server.url))
    for _ in range(10):
        assert not await monitor.check(worker)
        assert (worker.state, worker.reason) == (WorkerState.STARTING, "/health answers 404")
    server.answers.update({"/health": (200, b""), "/v1/models": models("m")})
    assert await monitor.check(worker)
    assert worker.state is WorkerState.READY  # the first pass is enough for one that was never lost
    assert worker.info is not None
    assert worker.info.model == "m"
    server.answers["/health"] = (503, b"")
    for _ in range(2):
        await monitor.check(worker)
        assert worker.state is WorkerState.READY
    await monitor.check(worker)
    assert (worker.state, worker.reason) == (WorkerState.UNHEALTHY, "/health answers 503")
    server.answers["/health"] = (200, b"")
    await monitor.check(worker)
    assert worker.state is WorkerState.UNHEALTHY  # one pass is not enough for one that was lost
    await monitor.check(worker)
    assert (worker.state, worker.reason) == (WorkerState.READY, "")


async def test_the_first_pass_makes_it_ready(ask: Visitor, engine: Any) -> None:
    registry, monitor = make(ask)
    worker = registry.add(WorkerSpec(engine({"/health": (200, b""), "/v1/models": models("m")}).url))
    assert await monitor.check(worker)
    assert worker.state is WorkerState.READY


async def test_adapters_loaded_at_run_time_become_known(ask: Visitor, engine: Any) -> None:
    server = engine({"/health": (200, b""), "/v1/models": models("m")})
    registry, monitor = make(ask)
    worker = registry.add(WorkerSpec(server.url))
    await monitor.check(worker)
    server.answers["/v1/models"] = models("m", "french")
    await monitor.check(worker)
    assert registry.resolve("french") is None  # asked every second check
    await monitor.check(worker)
    target = registry.resolve("french")
    assert target is not None
    assert target.adapter == "french"


async def test_events_that_it_did_not_tell_of_at_first_are_learned_at_the_next_check(ask: Visitor) -> None:
    """`/kv_event_sources` says what is not HTTP twice; everything else is answered. Then it is well."""
    sources = answers(b'{"0": {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}}')
    turns = [raw(b"SSH-2.0\r\n", then="close"), raw(b"SSH-2.0\r\n", then="close"), sources]
    asked: list[str] = []

    async def script(turn: Turn) -> None:
        asked.append(turn.seen.target)
        if turn.seen.target == "/kv_event_sources":
            await turns[min(asked.count("/kv_event_sources"), len(turns)) - 1](turn)
        else:
            await control(turn.seen, "m")(turn)

    registry, monitor = make(ask, learn_every=100)
    async with FaultyEngine(script) as engine:
        worker = registry.add(WorkerSpec(engine.url))
        for events in (None, None, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"):
            assert await monitor.check(worker)
            assert (worker.state, worker.spec.events) == (WorkerState.READY, events)
        assert asked.count("/kv_event_sources") == 3


async def test_a_question_that_is_never_answered_is_not_asked_at_every_check(ask: Visitor) -> None:
    asked: list[str] = []

    async def script(turn: Turn) -> None:
        asked.append(turn.seen.target)
        bad = turn.seen.target == "/metrics"
        await (raw(b"SSH-2.0\r\n", then="close") if bad else control(turn.seen, "m"))(turn)

    registry, monitor = make(ask, learn_every=10)
    async with FaultyEngine(script) as engine:
        worker = registry.add(WorkerSpec(engine.url))
        for _ in range(20):
            assert await monitor.check(worker)
        assert asked.count("/metrics") == 5  # at once, at the three next checks, and when its turn came


async def test_a_pool_it_cannot_join_is_its_reason(ask: Visitor, engine: Any) -> None:
    registry, monitor = make(ask)
    first = engine({"/health": (200, b""), "/v1/models": models("m")})
    odd = engine(
        {
            "/health": (200, b""),
            "/v1/models": models("m"),
            "/metrics": (200, b'vllm:cache_config_info{block_size="24",num_gpu_blocks="9"} 1.0\n'),
        }
    )
    for server in (first, odd):
        await monitor.check(registry.add(WorkerSpec(server.url)))
    states = {w.spec.url: (w.state, w.reason) for w in registry.workers()}
    assert states[first.url] == (WorkerState.READY, "")
    assert states[odd.url][0] is WorkerState.UNHEALTHY
    assert "block sizes [16, 24] can't share one pool" in states[odd.url][1]


async def test_it_runs_by_itself_and_ends_clean(ask: Visitor, engine: Any) -> None:
    changed = asyncio.Event()

    class Listener:
        def added(self, worker: Worker) -> None: ...

        def changed(self, worker: Worker) -> None:
            changed.set()

        def removed(self, worker: Worker) -> None: ...

    server = engine({"/health": (200, b""), "/v1/models": models("m")})
    registry, monitor = make(ask)
    registry.subscribe(Listener())
    before = asyncio.all_tasks()
    monitor.start()
    worker = registry.add(WorkerSpec(server.url))
    gone = registry.add(WorkerSpec("http://127.0.0.1:1"))
    while worker.state is not WorkerState.READY:
        await asyncio.wait_for(changed.wait(), 30)
        changed.clear()
    server.answers["/health"] = (500, b"")
    while worker.state is not WorkerState.UNHEALTHY:
        await asyncio.wait_for(changed.wait(), 30)
        changed.clear()
    registry.remove(gone.id)
    await monitor.close()
    await asyncio.sleep(0)  # the removed worker's task was cancelled, let it end
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_an_answer_that_comes_after_removal_changes_nothing(engine: Any) -> None:
    registry = Registry(LoadBoard(), lambda: 0.0)

    class Slow:
        async def alive(self, spec: WorkerSpec) -> None:
            registry.remove(spec.id)

        async def learn(self, spec: WorkerSpec, known: EngineInfo | None = None) -> Any:
            return Learned(EngineInfo("m"))

    guards = Guards()
    monitor = HealthMonitor(registry, Slow(), guards, clock=lambda: 0.0, random=lambda: 0.5)
    worker = registry.add(WorkerSpec("http://a:1"))
    await monitor.check(worker)
    assert registry.workers() == []
    assert worker.state is WorkerState.STARTING


class Scripted:
    """Answers a check as `up` says, when the test lets it."""

    def __init__(self) -> None:
        self.up = True
        self._turns = asyncio.Semaphore(0)
        self._answered = asyncio.Event()

    async def alive(self, spec: WorkerSpec) -> None:
        await self._turns.acquire()
        self._answered.set()
        if not self.up:
            raise UpstreamConnectError("can't connect")

    async def learn(self, spec: WorkerSpec, known: EngineInfo | None = None) -> Learned:
        return Learned(EngineInfo("m"))

    async def answer(self) -> None:
        """One check, which has to come; its answer is judged when this returns."""
        self._answered.clear()
        self._turns.release()
        await asyncio.wait_for(self._answered.wait(), 30)


async def test_a_failed_request_brings_the_checks_forward_until_they_have_decided() -> None:
    limits = HealthLimits(interval_s=3600, unhealthy_after=3)
    registry, guards, probe = Registry(LoadBoard(), lambda: 0.0), Guards(health=limits), Scripted()
    monitor = HealthMonitor(
        registry,
        probe,
        guards,
        clock=lambda: 0.0,
        random=lambda: 0.5,
        limits=limits,
        doubted_interval_s=0.001,
    )
    monitor.start()
    worker = registry.add(WorkerSpec("http://a:1"))
    await probe.answer()
    assert worker.state is WorkerState.READY
    # its engine is well, and the next look would be in an hour
    guards.record(worker.id, Verdict.FAILURE, 0.0)
    await probe.answer()
    states = [worker.state]
    # it is gone: three looks, as ever
    probe.up = False
    guards.record(worker.id, Verdict.FAILURE, 0.0)
    for _ in range(3):
        await probe.answer()
        states.append(worker.state)
    assert states == [WorkerState.READY] * 3 + [WorkerState.UNHEALTHY]
    assert worker.reason == "can't connect"
    # a request that ends after its worker has left
    registry.remove(worker.id)
    guards.record(worker.id, Verdict.FAILURE, 0.0)
    await monitor.close()


async def test_what_answers_and_can_be_no_worker_is_said_once(
    ask: Visitor, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And once more where it was one in between."""
    server = engine({"/health": (200, b'{"status": "ok", "server": "prefix-gateway"}')})
    registry, monitor = make(ask)
    worker = registry.add(WorkerSpec(server.url))
    for _ in range(3):
        assert not await monitor.check(worker)
    assert worker.reason.startswith("this is a prefix-gateway and no engine")
    server.answers.update({"/health": (200, b""), "/v1/models": models("m")})
    assert await monitor.check(worker)
    assert (worker.state, worker.reason) == (WorkerState.READY, "")
    server.answers["/health"] = (200, b'{"status": "ok", "server": "prefix-gateway"}')
    assert not await monitor.check(worker)
    assert [r.message for r in caplog.records] == ["a worker can't be used"] * 2
