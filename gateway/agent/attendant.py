"""Keeps the registrations of one engine's workers true: renewed while it is well, withdrawn when it is not,
and `draining` before the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import StoreError
from gateway.fleet.sharing.registrations import Registration, RegistrationState
from gateway.fleet.worker import EngineInfo, Worker, WorkerState
from gateway.steady import Steady

log = logging.getLogger(__name__)

Busy = Callable[[], Awaitable[int | None]]
"""How many requests the engine still has; None where it does not say."""


class Book(Protocol):
    async def put(self, registration: Registration) -> None:
        """Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds."""

    renew: float = 2.0
    settle: float = 3.0
    """From `draining` until every replica has read it: what comes before is not yet the rest."""
    drain: float = 120.0
    """The longest that the rest may take."""
    poll: float = 0.25


class Attendant:
    """`workers` are those of the agent's own registry: one engine, or one for each of its ranks."""

    def __init__(
        self,
        workers: Callable[[], Sequence[Worker]],
        book: Book,
        busy: Busy,
        *,
        agent: str,
        pace: Pace | None = None,
    ) -> None:
        self._workers = workers
        self._book = book
        self._busy = busy
        self._agent = agent
        self._pace = pace or Pace()
        self._told: dict[str, RegistrationState] = {}
        self._steady = Steady(3 * self._pace.renew)
        self._changed = asyncio.Event()

    # a listener of the registry: what changes there is told at once

    def added(self, worker: Worker) -> None:
        self._changed.set()

    def changed(self, worker: Worker) -> None:
        self._changed.set()

    def removed(self, worker: Worker) -> None:
        self._changed.set()

    async def attend(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            for worker in self._workers():
                await self._tell(worker, self._state_of(worker))
            try:
                async with asyncio.timeout(self._pace.renew):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def drain(self) -> None:
        """Nothing new from now on; returns when the engine has finished what it has, or its time is up."""
        if not self._told:
            return  # it never got a request
        began = asyncio.get_running_loop().time()
        log.info("draining: no new requests from now on")
        try:
            async with asyncio.timeout(self._pace.drain):
                while True:
                    await self.tell_all(RegistrationState.DRAINING)
                    left = await self._wait_idle(began + self._pace.settle)
                    if not left:
                        break
        except TimeoutError:
            log.warning(
                "the drain took too long; what is left is cut off", extra={"seconds": self._pace.drain}
            )
        else:
            log.info("drained", extra={"seconds": round(asyncio.get_running_loop().time() - began, 1)})

    async def tell_all(self, state: RegistrationState) -> None:
        """One that was never registered is not mentioned."""
        for worker in self._workers():
            if worker.id in self._told:
                await self._tell(worker, state)

    async def _wait_idle(self, earliest: float) -> bool:
        """For one renewal's time at most; True where something is left to do."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._pace.renew
        while loop.time() < until:
            if loop.time() >= earliest and not await self._busy():
                return False  # an engine that does not say is not waited for
            await asyncio.sleep(self._pace.poll)
        return True

    def _state_of(self, worker: Worker) -> RegistrationState | None:
        """None for one of which nothing is to be said: it was never ready."""
        if worker.state is WorkerState.READY:
            return RegistrationState.READY
        return RegistrationState.GONE if worker.id in self._told else None

    async def _tell(self, worker: Worker, state: RegistrationState | None) -> None:
        before = self._told.get(worker.id)
        if state is None or before is state is RegistrationState.GONE:
            return
        try:
            await self._book.put(Registration(worker.spec, state, self._agent, about(worker.info)))
        except StoreError as error:
            if self._steady.gone(asyncio.get_running_loop().time()):
                log.warning("can't register; trying on", extra={"reason": error.message})
            return
        self._steady.there(asyncio.get_running_loop().time())
        self._told[worker.id] = state
        if before is not state:
            log.info("registered as %s", state.value, extra={"worker": worker.id, "reason": worker.reason})


def about(info: EngineInfo | None) -> dict[str, object]:
    """What the engine said of itself, for people who look into Redis; gateways ask it themselves."""
    if info is None:
        return {}
    return {
        "model": info.model,
        "adapters": list(info.adapters),
        "block_size": info.block_size,
        "capacity": info.capacity_blocks,
        "version": info.version,
    }
