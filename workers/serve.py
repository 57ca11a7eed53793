"""Puts an engine and its API together and serves them until a signal comes: the composition root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
import zmq

from gateway.kv.events import EventBatch
from workers.api.app import make_app
from workers.api.generation import Generation
from workers.api.models import ServedModels
from workers.api.prompts import Prompts
from workers.api.service import Service
from workers.async_engine import AsyncEngine
from workers.backend import Backend
from workers.engine import Engine
from workers.metrics import EngineMetrics
from workers.publisher import KEPT_BATCHES, MAX_QUEUED, NullPublisher, Publisher, ZmqPublisher

VERSION = "0.32.0"
"""The vLLM release whose API this one follows; what /version answers."""
FINGERPRINT = "reference-engine"
_PARENT_CHECK_S = 1.0


class CannotServe(Exception):
    """An address is taken, or the engine cannot work as configured; the message says what to change."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where and how to serve. Without `kv_events_port` nobody is told of the cache."""

    host: str
    port: int
    kv_events_port: int | None
    kv_replay_port: int | None
    kv_events_topic: str
    served_names: tuple[str, ...]
    adapters: tuple[str, ...]
    report_cached: bool
    shutdown_seconds: int
    parent: int | None
    """Its process id, where the engine is to end with the process that started it."""


async def serve(backend: Backend, options: ServeOptions, on_ready: Callable[[int], None]) -> None:
    """Until SIGTERM or SIGINT; `on_ready` gets the port. Raises CannotServe."""
    with _listening(options.host, options.port) as listener:
        publisher, sources = _publisher(options)
        try:
            on_events = publisher.publish if options.kv_events_port is not None else None
            async with AsyncEngine(_engine(backend, on_events)) as engine:
                generation, service = _api(backend, options, engine, sources)
                config = uvicorn.Config(
                    make_app(generation, service),
                    lifespan="off",
                    access_log=False,
                    log_level="warning",
                    timeout_graceful_shutdown=options.shutdown_seconds,
                    timeout_keep_alive=75,
                )
                port: int = listener.getsockname()[1]
                server = _Server(config, lambda: on_ready(port), options.parent)
                await server.serve([listener])
        finally:
            publisher.close()


def _engine(backend: Backend, on_events: Callable[[EventBatch], None] | None) -> Engine:
    try:
        return Engine(backend.config, backend.runner, on_events, hash_mask=secrets.randbits(64))
    except ValueError as error:
        raise CannotServe(str(error)) from error


def _api(
    backend: Backend, options: ServeOptions, engine: AsyncEngine, sources: Mapping[str, Any]
) -> tuple[Generation, Service]:
    config = backend.config
    models = ServedModels(
        names=options.served_names,
        adapters=options.adapters,
        root=backend.root,
        max_model_len=config.max_model_len,
        created=int(time.time()),
    )
    prompts = Prompts(backend.tokenizer, backend.render_chat, backend.runner.vocab_size, config.max_model_len)
    metrics = EngineMetrics(config, engine.stats, time.monotonic)
    generation = Generation(
        engine=engine,
        prompts=prompts,
        models=models,
        metrics=metrics,
        block_size=config.block_size,
        fingerprint=FINGERPRINT,
        report_cached=options.report_cached,
        now=time.time,
        new_id=lambda: secrets.token_hex(8),
    )
    service = Service(
        engine=engine,
        prompts=prompts,
        models=models,
        metrics=metrics,
        in_flight=lambda: generation.in_flight,
        version=VERSION,
        event_sources=sources,
    )
    return generation, service


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise CannotServe(
            f"cannot listen on host {host}: {error}; --host takes an address of this machine"
        ) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise CannotServe(
                f"cannot listen on {host}:{port}: {error.strerror}; --port takes another"
            ) from error
        yield listener


def _publisher(options: ServeOptions) -> tuple[Publisher, Mapping[str, Any]]:
    """The publisher, and what /kv_event_sources says of it."""
    if options.kv_events_port is None:
        return NullPublisher(), {}
    replay_port = options.kv_replay_port or options.kv_events_port + 1
    host = socket.gethostbyname(options.host)
    endpoint, replay = f"tcp://{host}:{options.kv_events_port}", f"tcp://{host}:{replay_port}"
    try:
        publisher = ZmqPublisher(endpoint, replay, topic=options.kv_events_topic)
    except zmq.ZMQError as error:
        raise CannotServe(
            f"cannot publish KV events on {endpoint} with replay on {replay}: {error}; "
            "--kv-events-port and --kv-replay-port take others"
        ) from error
    source = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": KEPT_BATCHES,
        "hwm": MAX_QUEUED,
        "max_queue_size": MAX_QUEUED,
        "topic": options.kv_events_topic,
    }
    return publisher, {"0": source}


class _Server(uvicorn.Server):
    """uvicorn, but for two things: it says when it is ready, and a signal ends it with exit code 0."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], parent: int | None) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._parent = parent

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn raises a captured signal again once it has shut down, which ends the process by it
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        watch = None if self._parent is None else asyncio.create_task(self._follow(self._parent))
        try:
            yield
        finally:
            if watch is not None:
                watch.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def _follow(self, parent: int) -> None:
        # nothing portable tells of it, so it is asked
        while os.getppid() == parent:  # noqa: ASYNC110
            await asyncio.sleep(_PARENT_CHECK_S)
        self.should_exit = True
