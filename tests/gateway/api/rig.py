"""The public app behind a real server, with a router of a dozen lines.

On uvloop, as the product runs, that is our own listener, whose answers go below ASGI; on asyncio's loop it is
a plain uvicorn, for the app can be mounted under any ASGI server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any

import httpx
import uvicorn

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.endpoints import EndpointTable
from gateway.api.listener import ListenerOptions, make_listener
from gateway.api.openai import PublicApp
from gateway.api.record import RequestRecord
from gateway.api.retry import RetryPolicy
from gateway.api.serve import ProxyService, ServeOptions
from gateway.errors import ModelNotFound, Overloaded, Unavailable
from gateway.fleet.load import Lease, WorkerLoad
from gateway.prompt.base import PromptRequest
from gateway.prompt.reader import read_prompt
from gateway.routing.caller import Caller
from gateway.routing.route import Outcome, Route
from gateway.types import Usage, WorkerId
from gateway.upstream.client import UpstreamClient
from gateway.upstream.timeouts import Timeouts

QUICK = ServeOptions(retry=RetryPolicy(tries=3, base=0.001))
NOBODY = Caller()


@dataclass
class InOrderRouter:
    """Takes the first worker that is not excluded. Promises are the same for every request."""

    urls: list[str]
    models: dict[str, str] = field(default_factory=lambda: {"m": "m"})
    """Asked name → real name."""
    loads: list[WorkerLoad] = field(init=False)
    finished: list[tuple[WorkerId, Outcome, Usage | None, float | None]] = field(default_factory=list)
    asked: list[tuple[PromptRequest, frozenset[WorkerId], Caller]] = field(default_factory=list)
    asked_to_wait: list[float | None] = field(default_factory=list)
    """Per try, the worker's own Retry-After."""
    gate: asyncio.Event | None = None
    """Decisions wait for it."""

    def __post_init__(self) -> None:
        self.loads = [WorkerLoad(WorkerId(f"w{n}")) for n in range(len(self.urls))]

    async def route(
        self, request: PromptRequest, *, exclude: frozenset[WorkerId] = frozenset(), caller: Caller = NOBODY
    ) -> Route:
        self.asked.append((request, exclude, caller))
        if self.gate is not None:
            await self.gate.wait()
        if request.model not in self.models:
            raise ModelNotFound(f"model {request.model!r} does not exist; there are: m", param="model")
        if not self.loads:
            raise Unavailable("no worker is healthy")
        for url, load in zip(self.urls, self.loads, strict=True):
            if load.worker not in exclude:
                lease = Lease.take(load, prompt_tokens=100, matched_tokens=48)
                model = self.models[request.model]
                return Route(load.worker, url, model, lease, 100, 48, 64, (), "first")
        raise Overloaded("all are excluded")

    def finish(
        self,
        route: Route,
        outcome: Outcome,
        usage: Usage | None,
        ttft: float | None,
        *,
        retry_after: float | None = None,
        blameless: bool = False,
    ) -> None:
        assert not route.lease.released
        self.finished.append((route.worker, outcome, usage, ttft))
        self.asked_to_wait.append(retry_after)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for _, outcome, _, _ in self.finished]

    def assert_idle(self) -> None:
        """Every lease is back, to exactly zero."""
        for load in self.loads:
            assert (load.requests, load.waiting_tokens, load.decoding_tokens) == (0, 0, 0)


@dataclass
class Records:
    all: list[RequestRecord] = field(default_factory=list)
    new: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, record: RequestRecord) -> None:
        self.all.append(record)
        self.new.set()

    async def next(self) -> RequestRecord:
        """The next one, or the one that came since the last call."""
        await asyncio.wait_for(self.new.wait(), 10)
        self.new.clear()
        return self.all[-1]


@dataclass
class Door:
    url: str
    port: int
    router: InOrderRouter
    records: Records
    client: UpstreamClient


@contextlib.asynccontextmanager
async def serving(
    *engines: str,
    options: ServeOptions = QUICK,
    models: dict[str, str] | None = None,
    entries: list[dict[str, Any]] | None = None,
    not_ready: str | None = None,
    extra_paths: tuple[str, ...] = (),
) -> AsyncIterator[Door]:
    """The app on a port of its own, in front of engines at these URLs. At the end every lease is back and
    no connection to an engine is left."""
    router = InOrderRouter(list(engines))
    if models is not None:
        router.models = models
    records = Records()
    client = UpstreamClient()
    service = ProxyService(
        router, client, records, read_prompt, options=options, clock=perf_counter, rng=Random(7)
    )
    app = PublicApp(
        service,
        models=lambda: entries or [],
        readiness=lambda: not_ready,
        endpoints=EndpointTable(extra_paths),
    )
    async with running(app) as port:
        yield Door(f"http://127.0.0.1:{port}", port, router, records, client)
        router.assert_idle()
    await client.close()
    assert client.open_connections == 0


@contextlib.asynccontextmanager
async def running(app: Any) -> AsyncIterator[int]:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        server: uvicorn.Server = make_listener(app, ListenerOptions(ConnectionLimits()), None)
    else:
        server = uvicorn.Server(
            uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
        )
    config = server.config
    # its own loop looks for signals and ticks every 0.1 s, which would be most of a test's time
    if not config.loaded:
        config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    await server.on_tick(0)
    try:
        yield sock.getsockname()[1]
    finally:
        server.force_exit = True
        await server.shutdown([sock])
        # it gives its connections a tenth of a second; on a busy machine some are open still
        connections = server.server_state.connections
        for connection in list(connections):
            connection.transport.abort()
        async with asyncio.timeout(20):
            while connections:  # noqa: ASYNC110 - each leaves when its loop says that it is closed
                await asyncio.sleep(0.01)


def fast_timeouts(**changes: float) -> ServeOptions:
    given = {"connect": 5.0, "first_byte": 10.0, "whole_answer": 10.0, "idle": 10.0, "total": 30.0, **changes}
    return ServeOptions(timeouts=Timeouts(**given), retry=QUICK.retry)


def http() -> httpx.AsyncClient:
    """Without TLS, whose certificates would take most of a test's time to load."""
    return httpx.AsyncClient(trust_env=False, timeout=20, verify=False)  # noqa: S501 - plain HTTP only
