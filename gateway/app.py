"""The composition root: the one place where parts are made and handed to each other."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import httpx
import zmq.asyncio
from fastapi import FastAPI

from gateway.api.admin import create_admin
from gateway.api.door import Door
from gateway.api.endpoints import EndpointTable
from gateway.api.fleet_view import FleetView
from gateway.api.openai import PublicApp
from gateway.api.record import Recorder
from gateway.api.recorder import (
    AccessLog,
    EventMetrics,
    FilledBlocks,
    MetricsObserver,
    MetricsRecorder,
    Recorders,
)
from gateway.api.retry import RetryPolicy
from gateway.api.serve import ProxyService, ServeOptions
from gateway.errors import ConfigError
from gateway.events.followers import Followers
from gateway.events.ports import IndexSink
from gateway.fleet.guards import Guards
from gateway.fleet.health import HealthLimits
from gateway.fleet.load import LoadBoard
from gateway.fleet.monitor import HealthMonitor
from gateway.fleet.probe import EngineProbe
from gateway.fleet.registry import Registry
from gateway.fleet.sharing.replicas import Replicas
from gateway.fleet.spec import parse_worker, read_workers_file, refuse_doubles
from gateway.fleet.worker import WorkerSpec, WorkerState
from gateway.index.prefix import PrefixIndex
from gateway.metrics import LiveState, Metrics
from gateway.prompt.files import has_tokenizer_files
from gateway.prompt.reader import read_prompt
from gateway.routing.admission import Admission, QueueLimits
from gateway.routing.encoders import FROM_BYTES, FROM_ENGINE, EncoderBook
from gateway.routing.policy import Policy
from gateway.routing.registry import make_policy
from gateway.routing.router import Router
from gateway.routing.table import PolicyTable
from gateway.settings import Settings
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.upstream.client import UpstreamClient
from gateway.upstream.timeouts import Timeouts


@dataclass(slots=True)
class App:
    """All parts of one gateway. An async context: entered, it follows its fleet; left, nothing runs on."""

    public: PublicApp
    admin: FastAPI
    registry: Registry
    router: Router
    index: PrefixIndex
    metrics: Metrics
    view: FleetView
    _specs: tuple[WorkerSpec, ...]
    _encoders: EncoderBook
    _followers: Followers
    _monitor: HealthMonitor
    _store: Store | None
    _replicas: Replicas | None
    _client: UpstreamClient
    _control: httpx.AsyncClient
    _zmq: zmq.asyncio.Context
    _readiness: Readiness

    async def __aenter__(self) -> Self:
        # order matters: the index knows a worker before its follower, its follower before any request
        self.registry.subscribe(self._encoders)
        self.registry.subscribe(self.router.upkeep)
        self.registry.subscribe(self._followers)
        for spec in self._specs:
            self.registry.add(spec)
        self._monitor.start()
        if self._replicas is not None:
            self._replicas.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._replicas is not None:
            await self._replicas.close()
        await self._monitor.close()
        await self._followers.close()
        await self._encoders.close()
        await self._client.close()
        await self._control.aclose()
        if self._store is not None:
            await self._store.close()
        self._zmq.term()

    def drain(self) -> None:
        """Not ready from now on; what is under way goes on."""
        self._readiness.draining = True


@dataclass(slots=True)
class Readiness:
    """Whether this replica should get traffic; the reason why not, in words."""

    registry: Registry
    encoders: EncoderBook
    draining: bool = field(default=False)

    def __call__(self) -> str | None:
        if self.draining:
            return "shutting down"
        workers = self.registry.workers()
        if not any(w.state is WorkerState.READY for w in workers):
            return "no worker is ready" if workers else "no workers are registered"
        if self.encoders.searching:
            return "reading tokenizer files"
        return None


def build(settings: Settings) -> App:
    """Raises ConfigError for settings that cannot work, before anything listens or runs."""
    clock = time.monotonic
    random = Random(settings.seed)
    specs = _worker_specs(settings)
    metrics = Metrics()
    observer = MetricsObserver(metrics)

    board = LoadBoard()
    guards = Guards()
    index = PrefixIndex(max_blocks=settings.index_max_blocks, placement_ttl=settings.placement_ttl)
    registry = Registry(board, clock, aliases=settings.aliases)
    # the control plane's client: probes and engines' tokenizers, never the bytes of a request
    control = httpx.AsyncClient(trust_env=False, timeout=settings.health_timeout)
    probe = EngineProbe(control, timeout=settings.health_timeout)
    encoders = EncoderBook(
        registry,
        control,
        configured=_tokenizers(settings),
        clock=clock,
        deadline=settings.tokenize_timeout,
    )
    store = _store(settings)
    replicas = None
    if store is not None:
        replicas = Replicas(
            f"{socket.gethostname()}-{secrets.token_hex(4)}",
            store,
            board,
            registry,
            index.place,
            clock=clock,
            random=random,
            discover=settings.discovery == "redis",
        )
    admission = Admission(QueueLimits())
    router = Router(
        registry,
        board,
        guards,
        index,
        _policies(settings, random),
        encoders.get,
        clock=clock,
        random=random,
        held=lambda: index.stats().held,
        admission=admission,
        observer=observer,
        announce=replicas.sharing.placed if replicas is not None else None,
    )
    context = zmq.asyncio.Context()
    followers = Followers(IndexSink(index), EventMetrics(metrics), unit_of=registry.unit_of, context=context)
    monitor = HealthMonitor(
        registry,
        probe,
        guards,
        clock=clock,
        random=random.random,
        limits=HealthLimits(interval_s=settings.health_interval),
    )
    client = UpstreamClient()
    service = ProxyService(
        router,
        client,
        _recorder(settings, metrics, followers, registry),
        read_prompt,
        options=_options(settings),
        clock=clock,
        rng=random,
    )
    readiness = Readiness(registry, encoders)
    view = FleetView(
        registry, board, guards, index, router.feedback, encoders, admission, followers.status, clock
    )
    metrics.registry.register(LiveState(view.gauges))
    if replicas is not None:
        metrics.registry.register(LiveState(replicas.gauges))
    return App(
        public=PublicApp(
            service,
            models=registry.model_entries,
            readiness=readiness,
            endpoints=EndpointTable(settings.passthrough_paths),
        ),
        admin=create_admin(
            router=router,
            registry=registry,
            view=view,
            metrics=metrics.registry,
            make_policy=lambda name, params: make_policy(name, params, random=random),
            readiness=readiness,
        ),
        registry=registry,
        router=router,
        index=index,
        metrics=metrics,
        view=view,
        _specs=specs,
        _encoders=encoders,
        _followers=followers,
        _monitor=monitor,
        _store=store,
        _replicas=replicas,
        _client=client,
        _control=control,
        _zmq=context,
        _readiness=readiness,
    )


def _store(settings: Settings) -> Store | None:
    if settings.redis_url is None:
        return None
    return Store(parse_store_url(settings.redis_url), prefix=settings.redis_prefix)


def _worker_specs(settings: Settings) -> tuple[WorkerSpec, ...]:
    specs = [parse_worker(text) for text in settings.workers]
    if settings.workers_file is not None:
        specs += read_workers_file(settings.workers_file)
    refuse_doubles(specs)
    return tuple(specs)


def _tokenizers(settings: Settings) -> dict[str, str]:
    """Raises ConfigError for a path with no tokenizer in it, now rather than at the first request."""
    for model, source in settings.tokenizers.items():
        if source not in (FROM_ENGINE, FROM_BYTES) and not has_tokenizer_files(Path(source)):
            raise ConfigError(
                f"tokenizer of {model!r}: {source} has no tokenizer.json and is no GGUF file; "
                f"or say `{FROM_ENGINE}` or `{FROM_BYTES}`"
            )
    return settings.tokenizers


def _policies(settings: Settings, random: Random) -> PolicyTable:
    def make(name: str, params: dict[str, Any] | None = None) -> Policy:
        return make_policy(name, params, random=random)

    default = make(settings.policy, {k: _number(v) for k, v in settings.policy_params.items()})
    return PolicyTable(default, {model: make(name) for model, name in settings.model_policies.items()})


def _number(value: object) -> object:
    """Flags and variables carry text; what is no number is refused by the policy, by name."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _recorder(settings: Settings, metrics: Metrics, followers: Followers, registry: Registry) -> Recorder:
    recorders: list[Recorder] = [MetricsRecorder(metrics), FilledBlocks(followers.answered, registry.unit_of)]
    if settings.access_log:
        recorders.append(AccessLog())
    return Recorders(*recorders)


def _options(settings: Settings) -> ServeOptions:
    doors = {"strip": Door(), "refuse": Door(refuse=True), "off": Door.open()}
    return ServeOptions(
        timeouts=Timeouts(
            connect=settings.connect_timeout,
            first_byte=settings.first_byte_timeout,
            whole_answer=settings.whole_answer_timeout,
            idle=settings.idle_timeout,
            total=settings.total_timeout,
        ),
        retry=RetryPolicy(tries=settings.tries),
        door=doors[settings.door],
        max_body=settings.max_body_bytes,
    )
