"""Registrations follow the engine: told at once, withdrawn when it is lost, draining before the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from gateway.agent.attendant import Attendant, Pace
from gateway.errors import StoreError
from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.registrations import Registration, RegistrationState
from gateway.fleet.worker import EngineInfo, WorkerSpec

pytestmark = pytest.mark.anyio

READY, DRAINING, GONE = RegistrationState
SPEC = WorkerSpec("http://a:1", events="tcp://a:2")
INFO = EngineInfo("m", block_size=32, capacity_blocks=100, version="9", model_entries=({"id": "m"},))
PACE = Pace(renew=0.02, settle=0.05, drain=30.0, poll=0.005)


class Book:
    """Keeps what was put; refuses while `down`."""

    def __init__(self) -> None:
        self.put_so_far: list[Registration] = []
        self.down = False

    async def put(self, registration: Registration) -> None:
        if self.down:
            raise StoreError("no route")
        self.put_so_far.append(registration)

    @property
    def states(self) -> list[RegistrationState]:
        """Without repeats."""
        found: list[RegistrationState] = []
        for each in self.put_so_far:
            if not found or found[-1] is not each.state:
                found.append(each.state)
        return found


class Setup:
    def __init__(self, pace: Pace = PACE) -> None:
        self.registry = Registry(LoadBoard(), time.monotonic)
        self.book = Book()
        self.busy: int | None = 0
        self.attendant = Attendant(self.registry.workers, self.book, self._busy, agent="host:1", pace=pace)
        self.registry.subscribe(self.attendant)
        self.registry.add(SPEC)

    async def _busy(self) -> int | None:
        return self.busy

    def healthy(self, yes: bool) -> None:
        self.registry.learned(SPEC.id, Learned(INFO))
        self.registry.set_health(SPEC.id, yes, "" if yes else "refused")


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_an_engine_is_registered_when_it_is_ready_and_renewed() -> None:
    setup = Setup()
    task = asyncio.create_task(setup.attendant.attend())
    await asyncio.sleep(0.05)
    assert setup.book.put_so_far == []  # it still loads
    setup.healthy(True)
    await until(lambda: len(setup.book.put_so_far) >= 3)
    assert setup.book.put_so_far[0] == Registration(
        SPEC, READY, "host:1",
        {"model": "m", "adapters": [], "block_size": 32, "capacity": 100, "version": "9"},
    )  # fmt: skip
    task.cancel()


async def test_one_that_is_lost_is_withdrawn_once_and_comes_back() -> None:
    setup = Setup()
    task = asyncio.create_task(setup.attendant.attend())
    setup.healthy(True)
    await until(lambda: setup.book.states == [READY])
    setup.healthy(False)
    await until(lambda: setup.book.states == [READY, GONE])
    count = len(setup.book.put_so_far)
    await asyncio.sleep(0.1)
    assert len(setup.book.put_so_far) == count
    setup.healthy(True)
    await until(lambda: setup.book.states == [READY, GONE, READY])
    task.cancel()


async def test_redis_away_is_tried_again() -> None:
    setup = Setup()
    setup.book.down = True
    task = asyncio.create_task(setup.attendant.attend())
    setup.healthy(True)
    await asyncio.sleep(0.1)
    setup.book.down = False
    await until(lambda: setup.book.states == [READY])
    task.cancel()


async def test_a_drain_waits_for_what_the_engine_has_and_keeps_the_registration_alive() -> None:
    setup = Setup()
    attending = asyncio.create_task(setup.attendant.attend())
    setup.healthy(True)
    await until(lambda: setup.book.states == [READY])
    attending.cancel()
    setup.busy = 2
    drain = asyncio.create_task(setup.attendant.drain())
    await until(lambda: setup.book.put_so_far[-3:] != [] and len(setup.book.put_so_far) > 6)
    assert not drain.done()
    setup.busy = 0
    await drain
    await setup.attendant.tell_all(GONE)
    assert setup.book.states == [READY, DRAINING, GONE]


@pytest.mark.parametrize("busy", [0, None], ids=["idle", "silent"])
async def test_a_drain_gives_replicas_time_to_read_it(busy: int | None) -> None:
    setup = Setup(Pace(renew=0.02, settle=0.2, drain=30.0, poll=0.005))
    setup.healthy(True)
    attending = asyncio.create_task(setup.attendant.attend())
    await until(lambda: setup.book.states == [READY])
    attending.cancel()
    setup.busy = busy
    began = time.monotonic()
    await setup.attendant.drain()
    assert time.monotonic() - began >= 0.2


async def test_a_drain_ends_when_its_time_is_up() -> None:
    setup = Setup(Pace(renew=0.02, settle=0.0, drain=0.1, poll=0.005))
    setup.healthy(True)
    setup.busy = 1
    await asyncio.wait_for(setup.attendant.drain(), 30)


async def test_one_that_was_never_ready_is_never_mentioned() -> None:
    setup = Setup(Pace(renew=0.02, settle=0.0, drain=30.0, poll=0.005))
    await setup.attendant.drain()
    await setup.attendant.tell_all(GONE)
    assert setup.book.put_so_far == []
