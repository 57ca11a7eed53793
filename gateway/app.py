"""The composition root: the one place where parts are made and handed to each other."""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

import zmq.asyncio

from gateway.api.admin import create_admin
from gateway.api.advice import advice_routes
from gateway.api.batch import Batch, FlushedFirst
from gateway.api.cors import ASGIApp, with_cors
from gateway.api.doctor import doctor_routes
from gateway.api.endpoints import EndpointTable
from gateway.api.fleet_view import FleetView
from gateway.api.index_routes import index_routes
from gateway.api.knowledge import Knowledge, ShareMetrics
from gateway.api.openai import PublicApp
from gateway.api.pages import Pages
from gateway.api.record import Recorder
from gateway.api.recorder import (
    AccessLog,
    EventMetrics,
    FilledBlocks,
    GateMetrics,
    LastingMetrics,
    MetricsObserver,
    MetricsRecorder,
    Recorders,
)
from gateway.api.response_pins import RedisPins, ResponsePins
from gateway.api.serve import ProxyService
from gateway.api.state_gauges import Bounds
from gateway.api.timed_encoders import timed
from gateway.api.tracing import Tracer
from gateway.api.traffic import Traffic
from gateway.api.verifying import Verifier
from gateway.api.zeros import Zeros
from gateway.auth.admin import AdminGuard
from gateway.auth.limits import LocalLimiter
from gateway.auth.shared_limits import SharedLimiter
from gateway.errors import UpstreamError
from gateway.events.followers import Followers
from gateway.events.ports import IndexSink
from gateway.fleet.discovery.build import Discovery
from gateway.fleet.load import LoadBoard
from gateway.fleet.models_seen import ModelsSeen
from gateway.fleet.monitor import HealthMonitor
from gateway.fleet.probe import EngineProbe
from gateway.fleet.registry import Registry
from gateway.fleet.relief import Relief
from gateway.fleet.sharing.replicas import Replicas
from gateway.fleet.worker import WorkerSpec, WorkerState
from gateway.index.prefix import PrefixIndex
from gateway.index.tidy import Tidy
from gateway.lasting import Lasting
from gateway.metrics import LiveState, Metrics
from gateway.parts import (
    admission,
    declared,
    discovery,
    guards,
    health,
    make_tracer,
    policies,
    serve_options,
    tokenizers,
    worker_specs,
)
from gateway.prompt.reader import read_prompt
from gateway.reload import Reloader
from gateway.routing.encoders import EncoderBook
from gateway.routing.registry import make_policy
from gateway.routing.router import Router
from gateway.routing.shadow import watched
from gateway.routing.slice_refusals import SliceRefusals
from gateway.routing.slicing import Slicing
from gateway.security import Security, make_limiter, secure, worker_authorization
from gateway.settings import Settings
from gateway.shared_index import check_store, make_share, make_store
from gateway.store.connection import Store
from gateway.upstream.client import UpstreamClient
from gateway.upstream.via import Via
from gateway.upstream.visitor import Visitor
from gateway.watching import Watching


@dataclass(slots=True)
class App:
    """All parts of one gateway. An async context: entered, it follows its fleet; left, nothing runs on."""

    public: ASGIApp
    admin: AdminGuard
    security: Security
    reloader: Reloader
    registry: Registry
    router: Router
    index: PrefixIndex
    metrics: Metrics
    lasting: Lasting
    view: FleetView
    _specs: tuple[WorkerSpec, ...]
    _tidy: Tidy
    _encoders: EncoderBook
    _followers: Followers
    _monitor: HealthMonitor
    _discovery: Discovery | None
    _store: Store | None
    _redis_wait: bool
    _replicas: Replicas | None
    _client: UpstreamClient
    _pins: ResponsePins
    _tracer: Tracer | None
    _limiter: LocalLimiter | SharedLimiter
    _zmq: zmq.asyncio.Context
    _readiness: Readiness

    async def __aenter__(self) -> Self:
        if self._store is not None:
            await check_store(self._store, wait=self._redis_wait)
        # order matters: the index knows a worker before its follower, its follower before any request
        self.registry.subscribe(self._encoders)
        self.registry.subscribe(self.router.upkeep)
        self.registry.subscribe(self._followers)
        for spec in self._specs:
            self.registry.add(spec)
        self._monitor.start()
        self._tidy.start()
        if self._discovery is not None:
            self._discovery.start()
        if self._replicas is not None:
            self._replicas.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._discovery is not None:
            await self._discovery.close()
        if self._replicas is not None:
            await self._replicas.close()
        self._tidy.close()
        await self._monitor.close()
        await self._followers.close()
        await self._encoders.close()
        await self._client.close()
        await self._limiter.close()
        if self._tracer is not None:
            await self._tracer.close()
        await self._pins.close()
        if self._store is not None:
            await self._store.close()
        self._zmq.term()

    def unready(self) -> str | None:
        """Why it should get no traffic, in words; None where it may."""
        return self._readiness()

    def drain(self) -> None:
        """Not ready from now on; what is under way goes on."""
        self._readiness.draining = True


@dataclass(slots=True)
class Readiness:
    """Whether this replica should get traffic; the reason why not, in words."""

    registry: Registry
    encoders: EncoderBook
    knowledge: Knowledge
    discovery: Discovery | None
    draining: bool = field(default=False)

    def __call__(self) -> str | None:
        if self.draining:
            return "shutting down"
        workers = self.registry.workers()
        if not any(w.state is WorkerState.READY for w in workers):
            return "no worker is ready" if workers else self._nobody()
        if self.encoders.searching:
            return "reading tokenizer files"
        return self.knowledge.unready()

    def _nobody(self) -> str:
        reason = self.discovery.source.reason if self.discovery is not None else None
        return "no workers are registered" + (f" ({reason})" if reason else "")


def build(settings: Settings, name: str | None = None) -> App:
    """Raises ConfigError for settings that cannot work, before anything listens or runs. `name` is what all
    behind one port have in common, where they are several."""
    context = zmq.asyncio.Context()
    try:
        return _build(settings, name, context)
    except BaseException:
        context.term()
        raise


def _build(settings: Settings, name: str | None, context: zmq.asyncio.Context) -> App:
    clock = time.monotonic
    random = Random(settings.seed)
    specs = worker_specs(settings)
    metrics = Metrics()
    observer = MetricsObserver(metrics)
    lasting = Lasting(LastingMetrics(metrics), clock=clock, random=random.random)

    board = LoadBoard()
    guard = guards(settings)
    index = PrefixIndex(max_blocks=settings.index_max_blocks, placement_ttl=settings.placement_ttl)
    seen = ModelsSeen(time.time, keep_s=settings.models_remembered)
    registry = Registry(
        board,
        clock,
        aliases=settings.aliases,
        declared=declared(settings),
        max_requests=settings.worker_max_requests,
        seen=seen,
    )
    client = UpstreamClient()
    via = Via(secrets.token_hex(4) if name is None else name)
    visitor = Visitor(client, via=via)
    visitor.authorization = worker_authorization(settings)
    probe = EngineProbe(visitor, timeout=settings.health_timeout, gateways=settings.worker_gateways)
    encoders = EncoderBook(
        registry,
        visitor,
        configured=tokenizers(settings),
        clock=clock,
        deadline=settings.tokenize_timeout,
        concurrency=settings.tokenize_concurrency,
        lasting=lasting,
    )
    traffic = Traffic(clock, salt=secrets.randbits(64), registry=registry)
    share_metrics = ShareMetrics(metrics)
    store = make_store(settings, share_metrics)
    me = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    replicas, share = None, None
    if store is not None:
        share = make_share(store, me, index, share_metrics, clock, random.random)
        replicas = Replicas(
            me,
            store,
            board,
            registry,
            seen,
            index.place,
            clock=clock,
            random=random,
            discover=settings.discovery == "redis",
            lasting=lasting,
        )
    tracer = make_tracer(settings)
    limiter = make_limiter(settings, store, clock)
    security = secure(settings, limiter, GateMetrics(metrics))
    table = policies(settings, random, observer)
    queue = admission(settings)
    slice_refusals = SliceRefusals(clock)
    router = Router(
        registry,
        board,
        guard,
        index,
        table,
        timed(encoders.get, metrics.tokenize_seconds, metrics.not_tokenised, clock, traffic.overhear),
        clock=clock,
        random=random,
        held=lambda: index.stats().held,
        admission=queue,
        max_ttft=settings.max_ttft,
        slicing=Slicing(settings.slice_after, settings.slice_tokens),
        slice_refusals=slice_refusals,
        observer=observer,
        announce=replicas.sharing.placed if replicas is not None else None,
    )
    limits = health(settings)
    monitor = HealthMonitor(
        registry,
        probe,
        guard,
        clock=clock,
        random=random.random,
        limits=limits,
        lasting=lasting,
        # as long as the looks take that give it up
        relief=Relief(registry, guard, clock, client, limits.unhealthy_after * settings.health_timeout),
    )
    followers = Followers(
        IndexSink(index),
        EventMetrics(metrics),
        unit_of=registry.unit_of,
        context=context,
        share=share,
        lost=monitor.doubt,
        lasting=lasting,
    )
    knowledge = Knowledge(index, store, followers.shared)
    finder = discovery(settings, registry, clock, random, lasting)
    readiness = Readiness(registry, encoders, knowledge, finder)
    view = FleetView(registry, board, guard, index, router.feedback, encoders, queue, followers.status, clock)
    watching = Watching(view, readiness, Bounds(settings.index_max_blocks, settings.queue_size), clock)
    watching.export(metrics, registry, board, guard)
    options = serve_options(settings)
    zeros = Zeros(metrics, lambda model: table.of(model).name, shared=store is not None)
    zeros.door(options.door)
    registry.subscribe(zeros)
    pins = ResponsePins(clock, RedisPins(store) if store is not None else None)
    pages = Pages(settings.cors_origins)
    batch = Batch(MetricsRecorder(metrics, registry.base_of), traffic, *watching.recorders)
    metrics.registry.before_reading = batch.flush
    service = ProxyService(
        router,
        client,
        Recorders(*_at_once(settings, followers, registry), batch),
        read_prompt,
        options=options,
        gate=security.gate,
        tracer=tracer,
        pins=pins,
        pages=pages,
        clock=clock,
        rng=random,
        via=via,
        slice_refusals=slice_refusals,
    )
    metrics.registry.register(LiveState(knowledge.gauges))
    if replicas is not None:
        metrics.registry.register(LiveState(replicas.gauges))
    for found_by in (finder, replicas.discovery if replicas is not None else None):
        if found_by is not None:
            metrics.registry.register(LiveState(found_by.source.gauges))
    operators = create_admin(
        router=router,
        registry=registry,
        view=view,
        metrics=metrics.registry,
        make_policy=lambda name, params: make_policy(name, params, random=random),
        watch=lambda acting, watching, model: watched(acting, watching, model, observer),
        vet=partial(_vetted, security, probe),
        readiness=readiness,
        more=(
            advice_routes(traffic),
            doctor_routes(lambda: readiness.draining),
            index_routes(knowledge, Verifier(index, lambda: readiness.draining)),
            watching.page(table, queue, store, replicas, lambda: readiness.draining),
        ),
    )
    operators.add_middleware(FlushedFirst, flush=batch.flush)
    return App(
        public=with_cors(
            PublicApp(
                service,
                models=registry.model_entries,
                readiness=readiness,
                endpoints=EndpointTable(settings.passthrough_paths),
                gate=security.gate,
                pages=pages,
            ),
            settings.cors_origins,
        ),
        admin=security.guarded(operators),
        security=security,
        reloader=Reloader(
            settings, specs, registry, service, table, security, visitor, random, observer, zeros
        ),
        registry=registry,
        router=router,
        index=index,
        metrics=metrics,
        lasting=lasting,
        view=view,
        _specs=specs,
        _tidy=Tidy(index.collect, lasting),
        _encoders=encoders,
        _followers=followers,
        _monitor=monitor,
        _discovery=finder,
        _store=store,
        _redis_wait=settings.redis_wait,
        _replicas=replicas,
        _client=client,
        _pins=pins,
        _tracer=tracer,
        _limiter=limiter,
        _zmq=context,
        _readiness=readiness,
    )


async def _vetted(security: Security, probe: EngineProbe, spec: WorkerSpec) -> WorkerSpec:
    """One that somebody wants to add now, and that may come up later. Raises Forbidden, InvalidRequest, and
    ConfigError where it is there already and is no engine."""
    checked = await security.vet(spec)
    with suppress(UpstreamError):
        await probe.alive(checked)
    return checked


def _at_once(settings: Settings, followers: Followers, registry: Registry) -> list[Recorder]:
    recorders: list[Recorder] = [FilledBlocks(followers.answered, registry.unit_of)]
    if settings.access_log:
        recorders.append(AccessLog())
    return recorders
