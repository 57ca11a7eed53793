"""A task that fails is begun again: by itself, and in every part that lives on one."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx
import pytest

from gateway.api.recorder import LastingMetrics
from gateway.auth.watch import FileWatch
from gateway.backoff import Backoff
from gateway.errors import ConfigError, UpstreamConnectError
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadBoard
from gateway.fleet.monitor import HealthMonitor
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.discovery import RedisDiscovery
from gateway.fleet.sharing.peers import Peers
from gateway.fleet.sharing.registrations import Registrations
from gateway.fleet.sharing.sharing import LoadSharing, Pace
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec, WorkerState
from gateway.index.tidy import Tidy
from gateway.lasting import Lasting
from gateway.metrics import Metrics
from gateway.prompt.resolve import EncoderChoice
from gateway.routing.encoders import FROM_BYTES, EncoderBook, TokenizerState
from gateway.serving import told_to_stop
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.conftest import ROOT
from tests.servers import standalone

pytestmark = pytest.mark.anyio


def quick(metrics: Metrics | None = None) -> Lasting:
    observer = LastingMetrics(metrics) if metrics is not None else None
    return Lasting(observer, backoff=lambda: Backoff(first=0.001, most=0.01))


async def come(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.005)


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


# by itself


async def test_one_that_fails_is_begun_again_until_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    metrics, heard, runs = Metrics(), [], []
    done = asyncio.Event()

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError(f"number {len(runs)}")
        done.set()

    task = quick(metrics).begin(work, "mirror", about="http://a:1", lost="news", failed=heard.append)
    count = metrics.tasks_failed.labels("mirror")
    assert count.value == 0, "the series is there before the first failure"
    with caplog.at_level(logging.ERROR):
        await task
    assert done.is_set()
    assert [str(error) for error in heard] == ["number 1", "number 2"]
    assert count.value == 2
    lines = [record.__dict__ for record in caplog.records]
    assert [(line["task"], line["lost"]) for line in lines] == [("mirror: http://a:1", "news")] * 2
    assert all(record.exc_info is not None for record in caplog.records), "where it failed is in the log"


async def test_waits_double_while_lives_are_short_and_end_after_a_long_one() -> None:
    slept: list[float] = []
    now, lives = [0.0], iter((1.0, 1.0, 1.0, 100.0, 1.0))

    async def work() -> None:
        life = next(lives, None)
        if life is None:
            return
        now[0] += life
        raise ValueError

    class Noted(Backoff):
        def after(self, lived: float) -> float:
            slept.append(super().after(lived))
            return 0.0

    await Lasting(backoff=Noted, clock=lambda: now[0]).begin(work, "w", lost="")
    assert slept == [0.5, 1.0, 2.0, 0.0, 0.5]


async def test_cancelled_by_its_owner_it_ends_and_by_nobody_it_goes_on() -> None:
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise asyncio.CancelledError  # as a library's own future that was given up does
        await asyncio.Event().wait()

    task = quick().begin(work, "w", lost="")
    await come(lambda: len(runs) == 2)
    await end(task)
    assert len(runs) == 2


async def test_an_error_that_no_new_try_mends_ends_it() -> None:
    async def work() -> None:
        raise ConfigError("no endpoint")

    with pytest.raises(ConfigError, match="no endpoint"):
        await quick().begin(work, "w", lost="", final=ConfigError)


# in every part: each is given an error that it does not expect, once


class Bus:
    """Hears itself. The first word, and the first hearing, fail in a way that nobody expects."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.published = self.listened = 0

    async def publish(self, data: bytes) -> None:
        self.published += 1
        if self.published == 1:
            raise LookupError("speaking")
        self.said.put_nowait(data)

    async def listen(self) -> AsyncGenerator[bytes | None]:
        self.listened += 1
        if self.listened == 1:
            raise LookupError("hearing")
        while True:
            yield await self.said.get()


async def test_load_is_shared_again_after_both_its_tasks_have_failed() -> None:
    metrics, bus, board = Metrics(), Bus(), LoadBoard()
    sharing = LoadSharing(
        "me", bus, board, Peers("me", board, lambda *_: None), clock=asyncio.get_running_loop().time,
        random=lambda: 0.5, pace=Pace(beat=0.01), lasting=quick(metrics),
    )  # fmt: skip
    sharing.start()
    await come(lambda: sharing.status().speaking and sharing.status().listening)
    assert metrics.tasks_failed.labels("tell peers").value == 1
    assert metrics.tasks_failed.labels("hear peers").value == 1
    await sharing.close()


async def test_a_worker_is_checked_again_after_its_check_has_failed() -> None:
    class Probe:
        asked = 0

        async def alive(self, spec: WorkerSpec) -> None:
            self.asked += 1
            if self.asked == 1:
                raise UpstreamConnectError("not yet")
            if self.asked == 2:
                raise KeyError("an answer that nobody has thought of")

        async def learn(self, spec: WorkerSpec, known: EngineInfo | None = None) -> Learned:
            return Learned(EngineInfo(model="m", block_size=16))

    registry = Registry(LoadBoard(), lambda: 0.0)
    monitor = HealthMonitor(
        registry, Probe(), Guards(), clock=lambda: 0.0, random=lambda: 0.5, starting_interval_s=0.001,
        lasting=quick(),
    )  # fmt: skip
    monitor.start()
    worker = registry.add(WorkerSpec("http://a:1"))
    await come(lambda: worker.state is WorkerState.READY)
    await monitor.close()


async def test_registrations_are_read_again_after_a_listing_has_failed(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        registrations = Registrations(store, lambda: 0.0)
        listed = registrations.list
        faults: list[str | None] = []

        async def once_broken() -> object:
            registrations.list = listed  # type: ignore[method-assign]
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a name of nobody's")

        registrations.list = once_broken  # type: ignore[method-assign, assignment]
        discovery = RedisDiscovery(
            registrations, Registry(LoadBoard(), lambda: 0.0), clock=lambda: 0.0, random=lambda: 0.5,
            lasting=quick(),
        )  # fmt: skip
        failed = discovery.source.failed
        discovery.source.failed = lambda why, **more: (faults.append(why), failed(why, **more))[1]  # type: ignore[method-assign]
        discovery.start()
        await come(lambda: discovery.listed)
        assert [(why or "").partition(":")[0] for why in faults] == ["UnicodeDecodeError"]
        assert discovery.source.fault is None
        await discovery.close()
        await store.close()


async def test_a_reload_that_failed_by_surprise_is_tried_again(tmp_path: Path) -> None:
    file, calls = tmp_path / "keys", []
    file.write_text("one")

    def changed() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("gone while it was read")

    watch = FileWatch(lambda: [file], changed, interval=0.001, lasting=quick())
    watch.start()
    file.write_text("another")
    await come(lambda: len(calls) == 2)
    await watch.close()


async def test_tidying_goes_on_after_a_turn_that_failed() -> None:
    turns: list[int] = []

    def collect(limit: int) -> int:
        turns.append(limit)
        if len(turns) == 1:
            raise IndexError
        return 0

    tidy = Tidy(collect, quick())
    tidy.start()
    await come(lambda: len(turns) == 2)
    tidy.close()


async def test_a_tokenizer_that_could_not_be_read_is_read_again_and_the_engine_is_asked_meanwhile(
    tmp_path: Path,
) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        book = EncoderBook(
            Registry(LoadBoard(), lambda: 0.0), client, configured={"m": FROM_BYTES}, clock=lambda: 0.0,
            deadline=1.0, lasting=quick(),
        )  # fmt: skip
        choose, sources = book._choose, []

        def once_broken(model: str, path: str | None) -> EncoderChoice:
            book._choose = choose  # type: ignore[method-assign]
            raise MemoryError("a vocabulary too large")

        instead = book._do_without

        def noted(model: str, error: Exception) -> None:
            instead(model, error)
            sources.append((book.searching, book.states()["m"]))

        book._choose, book._do_without = once_broken, noted  # type: ignore[method-assign]
        book.added(Worker(WorkerSpec("http://a:1"), info=EngineInfo(model="m", block_size=16)))
        assert book.searching
        await come(lambda: bool(sources) and book.states()["m"].source == "bytes")
        why = "the engine's /tokenize: MemoryError: a vocabulary too large"
        assert sources == [(False, TokenizerState("engine", why))]
        await book.close()


async def test_a_process_whose_listener_ended_ends() -> None:
    async def fail() -> None:
        raise OSError("the port is gone")

    stop = asyncio.Event()
    with pytest.raises(OSError, match="the port is gone"):
        await told_to_stop(stop, asyncio.create_task(fail()))
    with pytest.raises(RuntimeError, match="the public listener has ended"):
        await told_to_stop(stop, asyncio.create_task(asyncio.sleep(0), name="public listener"))
    stop.set()
    lasts = asyncio.create_task(asyncio.Event().wait())
    await told_to_stop(stop, lasts)  # type: ignore[arg-type]
    lasts.cancel()


# and none is left out

SHORT = {
    "agent/run.py": "waits for an engine's end, and is waited for",
    "api/response_pins.py": "writes what waits; the next answer begins it anew",
    "api/intake.py": "begins one connection",
    "api/while_there.py": "one client's work, waited for or ended by the call that does it",
    "api/turns.py": "answers one connection's requests, whose failures it tells",
    "diagnosis/collect.py": "asks in a group of tasks, which waits for all of them",
    "auth/shared_limits.py": "settles one request",
    "events/shared.py": "waited for by the follower that begins them, which is begun again",
    "lasting.py": "the one place",
    "processes/asking.py": "one question to each process, ended with the call that asks",
    "processes/child.py": "listeners, waited for: the process ends with them",
    "processes/run.py": "a listener, waited for; a reload, asked for by a signal",
    "processes/silence.py": "one question, waited for or ended by the call that asks",
    "serving.py": "listeners, waited for: the process ends with them",
    "prompt/engine.py": "one call, waited for by all who asked the same",
    "upstream/outlet.py": "drains one answer",
}
"""Modules of the gateway that may begin tasks by themselves, and why."""


def test_nothing_else_begins_tasks_that_nobody_looks_after() -> None:
    root = ROOT / "gateway"
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
                found.add(path.relative_to(root).as_posix())
    assert found == set(SHORT)
