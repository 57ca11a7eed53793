"""Active health checks: one task a worker, the machine of `health` in charge of what they mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from gateway.errors import ConfigError, UpstreamError
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.relief import Relief
from gateway.fleet.worker import EngineInfo, Worker, WorkerSpec, WorkerState
from gateway.lasting import Lasting
from gateway.types import Clock, WorkerId

log = logging.getLogger(__name__)

_AGAIN = 3


class Probe(Protocol):
    async def alive(self, spec: WorkerSpec) -> None: ...

    async def learn(self, spec: WorkerSpec, known: EngineInfo | None = None) -> Learned: ...


class HealthMonitor:
    """Checks every registered worker from `start` to `close`; follows the registry as a listener.

    An engine is asked again what it is at its first check, when it comes back, and every `learn_every`
    checks: adapters loaded at run time become known, and those unloaded forgotten. What it failed to answer
    is asked again at each of the next `_AGAIN` checks, and then no more often than the rest. One that fails a
    request, or whose events break off, is looked at at once, but for the `doubted_interval_s` between two
    looks, and as often until the checks have decided.
    """

    def __init__(
        self,
        registry: Registry,
        probe: Probe,
        guards: Guards,
        *,
        clock: Clock,
        random: Callable[[], float],
        limits: HealthLimits | None = None,
        starting_interval_s: float = 0.5,
        doubted_interval_s: float = 0.2,
        learn_every: int = 6,
        lasting: Lasting | None = None,
        relief: Relief | None = None,
    ) -> None:
        """`relief` hears of each failed check of a worker that is unhealthy by then."""
        self._registry = registry
        self._probe = probe
        self._guards = guards
        self._clock = clock
        self._random = random
        self._limits = limits or HealthLimits()
        self._starting_interval_s = starting_interval_s
        self._doubted_interval_s = doubted_interval_s
        self._learn_every = learn_every
        self._lasting = lasting or Lasting()
        self._relief = relief
        self._leaving: set[asyncio.Task[None]] = set()
        self._checks: dict[WorkerId, int] = {}
        self._unheard: dict[WorkerId, int] = {}
        """Visits in a row that left a question without an answer."""
        self._refused: dict[WorkerId, str] = {}
        """Why, in words that were logged; empty where it was said and is over."""
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._doubts: dict[WorkerId, asyncio.Event] = {}

    def start(self) -> None:
        """Needs a running loop."""
        self._registry.subscribe(self)
        self._guards.on_failure(self.doubt)

    def doubt(self, worker: WorkerId) -> None:
        """It failed a request or hung up: is it still there? Its next check does not wait for its turn."""
        doubt = self._doubts.get(worker)
        if doubt is not None:
            doubt.set()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._leaving]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def added(self, worker: Worker) -> None:
        doubt = self._doubts[worker.id] = asyncio.Event()
        self._tasks[worker.id] = self._lasting.begin(
            lambda: self._watch(worker, doubt),
            "health checks",
            about=worker.id,
            lost="the worker's state stays as it was",
        )

    def changed(self, worker: Worker) -> None:
        """Its state is our own doing."""

    def removed(self, worker: Worker) -> None:
        self._checks.pop(worker.id, None)
        self._unheard.pop(worker.id, None)
        self._doubts.pop(worker.id, None)
        self._refused.pop(worker.id, None)
        task = self._tasks.pop(worker.id, None)
        if task is not None:
            task.cancel()
        if self._relief is not None and self._relief.wanted(worker):
            leaving = self._lasting.begin(
                lambda: self._see_off(worker),
                "looks at workers that have left",
                about=worker.id,
                lost="what waits there waits as long as it may",
            )
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def check(self, worker: Worker) -> bool:
        """One check, now: ask, judge, tell the registry. True where the engine passed."""
        health = self._guards.of(worker.id).health
        refused = ""
        try:
            await self._probe.alive(worker.spec)
            if self._must_learn(worker):
                await self._learn(worker)
        except UpstreamError as error:
            passed, reason = False, error.message
        except ConfigError as error:
            passed, reason = False, error.message
            refused = reason
        else:
            passed, reason = True, ""
        if self._registry.get(worker.id) is not worker:
            return passed  # removed while its engine was asked
        self._say(worker, refused)
        self._checks[worker.id] = self._checks.get(worker.id, 0) + 1
        health.record(passed, self._clock())
        if health.healthy or not passed:
            self._registry.set_health(worker.id, health.healthy, reason)
        if not passed and health.healthy is False and self._relief is not None:
            self._relief.relieve(worker)
        return passed

    def _say(self, worker: Worker, refused: str) -> None:
        """Once, that a worker answers and can be none: no more waiting mends that."""
        if refused != self._refused.get(worker.id, ""):
            self._refused[worker.id] = refused
            if refused:
                log.error("a worker can't be used", extra={"worker": worker.id, "reason": refused})

    async def _learn(self, worker: Worker) -> None:
        learned = await self._probe.learn(worker.spec, worker.info)
        if self._registry.get(worker.id) is worker:
            self._unheard[worker.id] = self._unheard.get(worker.id, 0) + 1 if learned.unheard else 0
        self._registry.learned(worker.id, learned)

    def _must_learn(self, worker: Worker) -> bool:
        if worker.info is None or worker.state is WorkerState.UNHEALTHY:
            return True
        if 0 < self._unheard.get(worker.id, 0) <= _AGAIN:
            return True
        return self._checks.get(worker.id, 0) % self._learn_every == 0

    async def _see_off(self, worker: Worker) -> None:
        """It has left, as one that hangs does whose agent or operator was quicker than the checks, and
        somebody still waits there."""
        relief, most = self._relief, self._limits.unhealthy_after
        failed = most if worker.state is WorkerState.UNHEALTHY else 0
        while relief is not None and relief.wanted(worker):
            try:
                await self._probe.alive(worker.spec)
            except (UpstreamError, ConfigError):
                failed += 1
                if failed >= most:
                    relief.relieve(worker)
            else:
                failed = 0
            await asyncio.sleep(self._limits.wait(self._random))

    async def _watch(self, worker: Worker, doubt: asyncio.Event) -> None:
        while True:
            doubted = doubt.is_set()
            doubt.clear()
            passed = await self.check(worker)
            if worker.info is None and not passed:
                await asyncio.sleep(self._starting_interval_s)
                continue
            if doubted and not passed and self._guards.of(worker.id).health.healthy:
                doubt.set()  # one check alone decides nothing
            await self._pause(doubt)

    async def _pause(self, doubt: asyncio.Event) -> None:
        """Until its turn comes, or sooner where it is doubted; never so soon that failing requests become a
        flood of checks."""
        loop = asyncio.get_running_loop()
        turn = self._limits.wait(self._random)
        soonest = loop.time() + min(self._doubted_interval_s, turn)
        with suppress(TimeoutError):
            async with asyncio.timeout(turn):
                await doubt.wait()
        await asyncio.sleep(max(0.0, soonest - loop.time()))
