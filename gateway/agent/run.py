"""An agent's life: start the engine (or find it), register it, follow it, drain it, end it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import zmq.asyncio

from gateway.agent.attendant import Attendant, Pace
from gateway.agent.busy import in_flight
from gateway.agent.child import Child
from gateway.agent.command import complete, of_ranks
from gateway.agent.following import follow
from gateway.errors import ConfigError
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.fleet.load import LoadBoard
from gateway.fleet.monitor import HealthMonitor
from gateway.fleet.probe import EngineProbe
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.registrations import Registrations, RegistrationState
from gateway.fleet.worker import WorkerSpec
from gateway.lasting import Lasting
from gateway.security import bearer
from gateway.shared_index import check_store
from gateway.store.connection import DEFAULT_PREFIX, Store
from gateway.store.eviction import EvictionWatch
from gateway.store.url import parse_store_url
from gateway.types import AskEngine
from gateway.upstream.client import UpstreamClient
from gateway.upstream.visitor import Visitor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    redis_url: str
    engine: WorkerSpec | None = None
    """The engine as gateways reach it; told from `command` where that says it."""
    ranks: int = 1
    """Data-parallel ranks of `engine`; a command says its own."""
    command: tuple[str, ...] = ()
    """Starts the engine; empty for one that runs already."""
    advertise_host: str | None = None
    """Where gateways reach this machine; told from the way to Redis where not given."""
    redis_prefix: str = DEFAULT_PREFIX
    redis_password: str | None = field(default=None, repr=False)
    redis_wait: bool = False
    """Go on, and try on, where Redis refuses us."""
    worker_api_key_file: Path | None = None
    """File with the key that the engine asks for, read once."""
    stop_timeout: float = 30.0
    """Seconds that a started engine gets between SIGTERM and SIGKILL."""
    pace: Pace = field(default_factory=Pace)


WITHOUT = "what the engine holds is not shared, and replicas learn of it no more"


async def run_agent(options: AgentOptions) -> int:
    """Until a signal, or until the engine that it started ends; returns the exit code. A second signal cuts
    the drain short. Raises ConfigError."""
    url = parse_store_url(options.redis_url, options.redis_password)
    host = options.advertise_host or _own_address(*url.nodes[0])
    argv, specs = _plan(options, host)
    key = options.worker_api_key_file
    authorization = None if key is None else bearer(key)
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, stop, hurry)
    store = Store(url, prefix=options.redis_prefix, without=WITHOUT)
    try:
        await check_store(store, wait=options.redis_wait)
        child = await Child.start(argv) if argv else None
        try:
            client = UpstreamClient()
            visitor = Visitor(client)
            visitor.authorization = authorization
            try:
                await _Agent(options, store, visitor, specs).run(child, stop, hurry)
            finally:
                await client.close()
        finally:
            code = await child.stop(options.stop_timeout) if child is not None else 0
    finally:
        await store.close()
    return code


class _Agent:
    """The parts, put together for one engine."""

    def __init__(
        self, options: AgentOptions, store: Store, ask: AskEngine, specs: Sequence[WorkerSpec]
    ) -> None:
        limits = HealthLimits(interval_s=1.0, unhealthy_after=2)
        name = f"{socket.gethostname()}:{os.getpid()}"
        random = Random().random
        self._lasting = Lasting(random=random)
        self._registry = Registry(LoadBoard(), time.monotonic)
        self._monitor = HealthMonitor(
            self._registry,
            EngineProbe(ask),
            Guards(health=limits),
            clock=time.monotonic,
            random=random,
            limits=limits,
            lasting=self._lasting,
        )
        self._attendant = Attendant(
            self._registry.workers,
            Registrations(store, time.time),
            lambda: in_flight(ask, specs[0].url),
            agent=name,
            pace=options.pace,
        )
        self._settings = EvictionWatch(store, random=random, lasting=self._lasting)
        self._zmq = zmq.asyncio.Context()
        self._followers = follow(self._registry, store, self._zmq, name, random, self._lasting)
        self._specs = specs

    async def run(self, child: Child | None, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Returns when its workers are out of the fleet, or could not be taken out."""
        self._registry.subscribe(self._attendant)
        for spec in self._specs:
            self._registry.add(spec)
        self._monitor.start()
        self._settings.start()
        attending = self._lasting.begin(
            self._attendant.attend, "registrations", lost="gateways keep what was registered last"
        )
        engine = asyncio.create_task(child.wait() if child is not None else _never(), name="engine")
        try:
            await _first(asyncio.shield(engine), asyncio.shield(attending), stop.wait())
            attending.cancel()
            if engine.done():
                log.error("the engine ended by itself", extra={"code": engine.result()})
            else:
                await _first(asyncio.shield(engine), hurry.wait(), self._attendant.drain())
            await self._attendant.tell_all(RegistrationState.GONE)
        finally:
            for task in (attending, engine):
                task.cancel()
            await asyncio.gather(attending, engine, return_exceptions=True)
            await self._monitor.close()
            await self._settings.close()
            await self._followers.close()
            self._zmq.term()


async def _first(*waits: Awaitable[object]) -> None:
    """Until one of them is done; the others are given up. Raises what that one raised."""
    futures = [asyncio.ensure_future(each) for each in waits]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


async def _never() -> int:
    await asyncio.Event().wait()
    return 0


def _on_signal(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    if stop.is_set():
        hurry.set()
    stop.set()


def _plan(options: AgentOptions, host: str) -> tuple[tuple[str, ...], tuple[WorkerSpec, ...]]:
    """What to start, if anything, and the workers that it will be."""
    engine = options.engine and seen_from_outside(options.engine, host)
    if not options.command:
        if engine is None:
            raise ConfigError("no engine: give --engine URL, or the command that starts one after `--`")
        return (), of_ranks(engine, options.ranks)
    if options.ranks > 1:
        raise ConfigError(
            "--data-parallel-size goes with --engine alone; of a command it is one of its own flags"
        )
    command = complete(options.command, host, engine)
    if command.added:
        log.info("flags added to the engine's command", extra={"flags": list(command.added)})
    return command.argv, command.workers


def seen_from_outside(spec: WorkerSpec, host: str) -> WorkerSpec:
    """Loopback addresses in it become this machine's own: gateways elsewhere can't follow them."""

    def outside(address: str | None) -> str | None:
        parts = urlsplit(address or "")
        if address is None or parts.hostname not in _LOOPBACK or host in _LOOPBACK:
            return address
        port = f":{parts.port}" if parts.port is not None else ""
        return parts._replace(netloc=(f"[{host}]" if ":" in host else host) + port).geturl()

    url = outside(spec.url) or spec.url
    return replace(spec, url=url, events=outside(spec.events), replay=outside(spec.replay))


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104 - compared, not bound


def _own_address(host: str, port: int) -> str:
    """The address of this machine on its way to `host`: where others on that network reach it."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"no way to Redis at {host}:{port}: {error.strerror or error}; --advertise-host says where "
            "gateways reach this machine"
        ) from error
