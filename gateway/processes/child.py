"""One of several gateway processes: a whole replica. Its public port is the one that all share, its admin
port a Unix socket that only the supervisor reaches; the supervisor's end is its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from prometheus_client import disable_created_metrics

from gateway import early_signals
from gateway.api.listener import Listener, ListenerOptions, make_listener
from gateway.app import App, build
from gateway.errors import ConfigError
from gateway.processes.acceptor import Acceptor
from gateway.processes.board import Board
from gateway.processes.families import families_of
from gateway.processes.inside import Inside
from gateway.processes.wire import (
    Accept,
    Beat,
    Begin,
    Channel,
    Drain,
    Last,
    Refused,
    Reload,
    Reloaded,
    incoming,
)
from gateway.serving import raise_ended, told_to_stop
from gateway.settings import Settings
from gateway.settled import settle_memory

log = logging.getLogger("gateway.processes")

BEAT_S = 1.0
LOOK_S = 0.05
"""How soon a change of readiness is told."""
LINGER_S = 5.0
"""How long connections of clients that ask nothing stay open in a process that was replaced."""

Configure = Callable[[Settings, Begin], None]
"""Logging, by the settings and what else is said at the beginning."""


def serve_as_child(control: int, listening: int, board: int, configure: Configure) -> int:
    """Serves until it is told to end, or the supervisor has ended. The arguments are inherited descriptors.
    Returns the exit code."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(control, listening, board, configure))


async def _serve(control: int, listening: int, board: int, configure: Configure) -> int:
    channel = await Channel.over(socket.socket(fileno=control))
    begin = await channel.receive()
    if not isinstance(begin, Begin):
        return 1
    shared = socket.socket(fileno=listening)
    try:
        settings = incoming(begin.settings)
        configure(settings, begin)
        async with build(settings, begin.name) as app:
            process = _Process(app, settings, channel, begin, shared, Board(board, begin.seats))
            await process.run()
    except ConfigError as error:
        channel.send(Refused(error.message))
        await channel.close()
        return 2
    await channel.close()
    if process.orphan:
        _clear_away(Path(begin.admin))
    return 0


def _clear_away(path: Path) -> None:
    """What a supervisor that was killed left: the last of its processes takes the folder along."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


@dataclass(slots=True)
class _Process:
    app: App
    settings: Settings
    channel: Channel
    begin: Begin
    shared: socket.socket
    board: Board
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _replaced: bool = False
    orphan: bool = False
    """Its supervisor is gone."""

    async def run(self) -> None:
        security = self.app.security
        options = ListenerOptions(
            security.bounds,
            self.settings.keep_alive_timeout,
            self.settings.shutdown_grace,
            self.app.metrics.accepts_failed.inc,
        )
        public = make_listener(self.app.public, options, security.public_tls)
        admin = make_listener(
            Inside(self.app.admin.inner, self.app.metrics.registry), options.of_admin(), None
        )
        path = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.bind(self.begin.admin)
        public_task = asyncio.create_task(public.serve([]), name="public listener")
        admin_task = asyncio.create_task(admin.serve([path]), name="admin listener")
        listeners = (public_task, admin_task)
        while not (public.started and admin.started):
            raise_ended(listeners)
            await asyncio.sleep(0.005)
        acceptor = Acceptor(
            self.shared, self.board, self.begin.seat, public.intake(),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, public)
        for number in early_signals.NUMBERS:  # the supervisor's, also where they are sent to all of its group
            early_signals.take_over(loop, number, lambda: None)
        settle_memory()
        hear = self.app.lasting.begin(
            lambda: self._hear(acceptor, public),
            "hear the supervisor",
            lost="it can't be reloaded or told to end",
        )
        beat = self.app.lasting.begin(
            lambda: self._beat(acceptor),
            "tell the supervisor",
            lost="it will be taken for hanging, and killed",
        )
        await told_to_stop(self._end, *listeners)
        await self._drain(acceptor, public)
        public.should_exit = True
        await public_task
        self.channel.send(Last(families_of(self.app.metrics.registry.collect())))
        admin.should_exit = True
        await admin_task
        for task in (hear, beat):
            task.cancel()
        await asyncio.gather(hear, beat, return_exceptions=True)

    async def _drain(self, acceptor: Acceptor, public: Listener) -> None:
        if self._replaced:
            acceptor.stop()
            public.say_goodbye()
            await _until(lambda: not public.server_state.connections, LINGER_S)
            self.app.drain()
            return
        self.app.drain()
        if not self.orphan:
            await asyncio.sleep(self.settings.settle)
        acceptor.stop()

    def _on_signal(self, public: Listener) -> None:
        if self._end.is_set():
            public.force_exit = True
        self._end.set()

    async def _hear(self, acceptor: Acceptor, public: Listener) -> None:
        while (message := await self.channel.receive()) is not None:
            if isinstance(message, Accept):
                acceptor.start()
            elif isinstance(message, Reload):
                self._reload(incoming(message.settings))
            elif isinstance(message, Drain):
                self._replaced = message.replaced
                self._end.set()
        if not self._end.is_set():
            log.error("the supervisor is gone: this process ends")
        self.orphan = True
        self._end.set()

    def _reload(self, settings: Settings) -> None:
        try:
            waiting = self.app.reloader.reload(settings)
        except ConfigError as error:
            self.channel.send(Refused(error.message))
        else:
            self.channel.send(Reloaded(waiting))

    async def _beat(self, acceptor: Acceptor) -> None:
        said: tuple[str | None, bool] | None = None
        loop = asyncio.get_running_loop()
        at = 0.0
        while True:
            unready = self.app.unready()
            now, state = loop.time(), (unready, acceptor.taking)
            if state != said or now - at >= BEAT_S:
                self.channel.send(Beat(unready, acceptor.connections))
                said, at = state, now
            await asyncio.sleep(LOOK_S)


async def _until(come: Callable[[], bool], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not come() and loop.time() < end:  # noqa: ASYNC110 (uvicorn has no event)
        await asyncio.sleep(0.05)
