"""Follows the registrations in Redis: who registers joins the fleet, who drains gets nothing new, who says
goodbye leaves.

Silence alone removes nobody whose engine answers: an agent that died, a Redis that was away or came back
empty cost no worker. Only a worker that is silent *and* fails its health checks is let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.errors import ConfigError, StoreError
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.registrations import Listing, Registration, Registrations, RegistrationState
from gateway.fleet.source import Source
from gateway.fleet.worker import WorkerSpec, WorkerState
from gateway.lasting import Lasting
from gateway.steady import Steady
from gateway.types import Clock, WorkerId

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class Reconciler:
    """Brings the registry in line with a listing. Workers that others added are left alone, and so is what an
    operator drained."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ours: dict[WorkerId, WorkerSpec] = {}
        """As registered: the registry's own spec learns more from the engine."""
        self._drained: set[WorkerId] = set()
        self._silent: set[WorkerId] = set()
        self._refused: dict[WorkerId, str] = {}

    def __len__(self) -> int:
        return len(self._ours)

    @property
    def refused(self) -> int:
        """Registered workers that can't join."""
        return len(self._refused)

    def apply(self, listing: Listing) -> None:
        for registration in listing.registered:
            self._apply(registration)
        renewed = {registration.id for registration in listing.registered}
        self._refused = {worker: why for worker, why in self._refused.items() if worker in renewed}
        for worker in self._ours.keys() - renewed:
            self._without_renewal(worker)

    def _apply(self, registration: Registration) -> None:
        worker = registration.id
        self._silent.discard(worker)
        if registration.state is RegistrationState.GONE:
            self._remove(worker, "it said goodbye")
            return
        if worker in self._ours and self._ours[worker] != registration.spec:
            self._remove(worker, "it registered anew")
        if worker not in self._ours and not self._add(registration):
            return
        draining = registration.state is RegistrationState.DRAINING
        if draining and worker not in self._drained:
            self._drained.add(worker)
            self._registry.drain(worker, "its agent takes it out of the fleet")
            log.info("a worker drains", extra={"worker": worker, "agent": registration.agent})
        elif not draining and worker in self._drained:
            self._drained.discard(worker)
            self._registry.resume(worker)

    def _add(self, registration: Registration) -> bool:
        worker = registration.id
        try:
            self._registry.add(registration.spec)
        except ConfigError as error:
            if self._refused.get(worker) != error.message:
                log.warning(
                    "a registered worker can't join", extra={"worker": worker, "reason": error.message}
                )
            self._refused[worker] = error.message
            return False
        self._refused.pop(worker, None)
        self._ours[worker] = registration.spec
        log.info("a worker registered", extra={"worker": worker, "agent": registration.agent})
        return True

    def _without_renewal(self, worker: WorkerId) -> None:
        known = self._registry.get(worker)
        unwell = known is None or known.state in (WorkerState.UNHEALTHY, WorkerState.STARTING)
        if unwell or worker in self._drained:
            self._remove(worker, "neither its agent nor its engine answers")
        elif worker not in self._silent:
            self._silent.add(worker)
            log.warning("a worker's agent is silent; its engine still answers", extra={"worker": worker})

    def _remove(self, worker: WorkerId, reason: str) -> None:
        if self._ours.pop(worker, None) is None:
            return
        self._drained.discard(worker)
        self._silent.discard(worker)
        self._registry.remove(worker)
        log.info("a worker left", extra={"worker": worker, "reason": reason})


class RedisDiscovery:
    """Lists the registrations every `interval_s`, from `start` to `close`. What was known stays known while
    Redis does not answer."""

    def __init__(
        self,
        registrations: Registrations,
        registry: Registry,
        *,
        clock: Clock,
        random: Callable[[], float],
        interval_s: float = INTERVAL_S,
        lasting: Lasting | None = None,
    ) -> None:
        self._registrations = registrations
        self._reconciler = ours = Reconciler(registry)
        self.source = Source(
            "redis",
            clock,
            joined=lambda: len(ours),
            unusable=lambda: ours.refused,
            nobody=lambda: None if len(ours) or ours.refused else "Redis: no agent has registered an engine",
        )
        self._clock = clock
        self._random = random
        self._interval_s = interval_s
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None
        self.listed = False
        """The registrations were read at least once."""

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._follow,
            "discovery in Redis",
            lost="the fleet stays as it is known",
            failed=self.source.broke,
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        steady = Steady(3 * self._interval_s)
        while True:
            try:
                self._reconciler.apply(await self._registrations.list())
            except StoreError as error:
                if steady.gone(self._clock()):
                    log.warning(
                        "registrations can't be read; the fleet stays as it is known",
                        extra={"reason": error.message},
                    )
                self.source.failed(error.message)
            else:
                self.listed = True
                steady.there(self._clock())
                self.source.listed()
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * self._random()))
