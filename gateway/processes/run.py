"""`serve --processes N`: two sockets, N processes behind them, signals, and an orderly end.

SIGTERM and SIGINT drain all and end; a second one ends at once. SIGHUP, and a file with keys or certificates
that has changed, reload the settings in each process. SIGUSR2 replaces them one by one, with the settings as
they stand then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import uvloop
from prometheus_client import disable_created_metrics

from gateway import early_signals
from gateway.api.listener import Listener, ListenerOptions, bind, make_listener, url_of
from gateway.auth.limits import LocalLimiter
from gateway.auth.watch import FileWatch
from gateway.errors import ConfigError
from gateway.open_files import allow_open_files
from gateway.processes.board import Board, board_file
from gateway.processes.care import Care, Patience
from gateway.processes.crew import Crew
from gateway.processes.ended import Ended
from gateway.processes.front import create_front
from gateway.processes.journal import Journal
from gateway.processes.member import Member, start_member
from gateway.processes.supervisor import Supervisor
from gateway.processes.wire import Begin, outgoing
from gateway.security import Security, secure
from gateway.serving import WATCH_SECONDS, OnReady, ReadSettings, told_to_stop
from gateway.settings import Settings

log = logging.getLogger("gateway.processes")


def serve_processes(
    settings: Settings,
    on_ready: OnReady | None = None,
    read_settings: ReadSettings | None = None,
    log_file: Path | None = None,
) -> bool:
    """As `gateway.serving.serve`, with `settings.processes` processes, which log to `log_file` or stderr.
    False where one of them did not end as it was told to."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    allow_open_files(settings.max_connections)  # the processes inherit it
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, on_ready, read_settings or (lambda: settings), log_file))


async def _serve(
    settings: Settings, on_ready: OnReady | None, read_settings: ReadSettings, log_file: Path | None
) -> bool:
    security = secure(settings, LocalLimiter(time.monotonic), _Nobody())
    public_socket = bind(settings.host, settings.port, "--port")
    admin_socket = bind(settings.admin_host, settings.resolved_admin_port, "--admin-port")
    public_socket.listen(settings.max_connections)  # a whole burst; the system may allow fewer (somaxconn)
    seats = 2 * settings.processes  # each, and its successor
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(_private_folder()))
        descriptor = board_file(seats)
        starter = _Starter(settings, public_socket, descriptor, seats, folder, log_file)
        crew = Crew(time.monotonic)
        care = Care(crew, Board(descriptor, seats), Ended(time.monotonic), Patience())
        supervisor = Supervisor(starter, settings, crew, care, Journal())
        front = security.guarded(create_front(supervisor))
        options = ListenerOptions(security.bounds, settings.keep_alive_timeout, settings.shutdown_grace)
        admin = make_listener(front, options.of_admin(), security.admin_tls)
        admin_task = asyncio.create_task(admin.serve([admin_socket]), name="admin listener")
        urls = url_of(public_socket, security.public_tls), url_of(admin_socket, security.admin_tls)
        signals = _Signals(supervisor, security, read_settings)
        try:
            await signals.or_stop(supervisor.begin())
            signals.begun()
            if on_ready is not None and not signals.stop.is_set():
                on_ready(*urls)
            log.info("listening", extra={"public": urls[0], "admin": urls[1]})
            await told_to_stop(signals.stop, admin_task)
            log.info("shutting down: not ready from now on; open answers may finish")
        finally:
            await signals.close()
            public_socket.close()
            in_order = await supervisor.stop()
            await _end(admin, admin_task)
        return in_order


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the processes' admin sockets are: nobody else may reach them."""
    try:
        return tempfile.TemporaryDirectory(prefix="pgw-")
    except OSError as error:
        raise ConfigError(
            f"no place for the processes' sockets ({error.strerror}): TMPDIR names a folder that can be "
            "written to"
        ) from error


async def _end(admin: Listener, task: asyncio.Task[None]) -> None:
    admin.should_exit = True
    await task


_ADDRESSES = ("host", "port", "admin_host", "admin_port")
"""What stays as the ports were bound, and what processes that start later know for the gateway's own."""


class _Starter:
    def __init__(
        self,
        started_with: Settings,
        listening: socket.socket,
        board: int,
        seats: int,
        folder: Path,
        log_file: Path | None,
    ) -> None:
        self._bound = {name: getattr(started_with, name) for name in _ADDRESSES}
        self._listening = listening.fileno()
        self._board = board
        self._seats = seats
        self._folder = folder
        self._log = None if log_file is None else str(log_file.resolve())
        self._name = secrets.token_hex(4)
        self._lives = 0

    async def __call__(self, number: int, seat: int, settings: Settings) -> Member:
        self._lives += 1
        begin = Begin(
            {**outgoing(settings), **self._bound}, number, seat, self._seats,
            str(self._folder / f"{number}-{self._lives}"), self._log, self._name,
        )  # fmt: skip
        return await start_member(begin, self._listening, self._board, time.monotonic())


class _Signals:
    """What signals and changed files set going."""

    def __init__(self, supervisor: Supervisor, security: Security, read_settings: ReadSettings) -> None:
        self._supervisor = supervisor
        self._security = security
        self._read = read_settings
        self._at_work: set[asyncio.Task[None]] = set()
        self._replacing = False
        self._watch: FileWatch | None = None
        self.stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        early = [
            early_signals.take_over(loop, signal.SIGHUP, self._begin, self._reload),
            early_signals.take_over(loop, signal.SIGUSR2, self._begin, self._replace),
        ]
        self._early = any(early)

    def begun(self) -> None:
        """All processes are there: files are watched, and what came too early is made up for. A reload is
        enough: processes that began after the signal are successors already."""
        if self._early:
            self._begin(self._reload)
        self._watch = FileWatch(
            lambda: Security.files(self._supervisor.settings),
            lambda: self._begin(self._reload),
            interval=WATCH_SECONDS,
        )
        self._watch.start()

    async def or_stop(self, work: Awaitable[None]) -> None:
        """Until that is done, or it is time to stop."""
        done, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        await asyncio.wait((done, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if done.done():
            done.result()
            return
        done.cancel()
        await asyncio.gather(done, return_exceptions=True)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        for task in self._at_work:
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)

    def _on_stop(self) -> None:
        if self.stop.is_set():
            self._supervisor.kill()
        self.stop.set()

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(self._logged(work))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    async def _logged(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ConfigError as error:
            log.error("the settings were not reloaded: the old ones stay", extra={"reason": error.message})

    async def _reload(self) -> None:
        new = self._read()
        take_up = self._security.prepare(new)
        await self._supervisor.reload(new)
        take_up()

    async def _replace(self) -> None:
        if self._replacing:
            log.warning("processes are being replaced already")
            return
        self._replacing = True
        try:
            new = self._read()
            self._security.prepare(new)  # what the admin port refuses is refused before anything changes
            log.info("processes are replaced one by one")
            if await self._supervisor.replace_all(new):
                self._security.prepare(new)()  # files may have changed meanwhile
                log.info("all processes were replaced")
        finally:
            self._replacing = False


class _Nobody:
    """Hears of no client: those come to the processes."""

    def known(self, keys: Iterable[str]) -> None:
        pass

    def unauthorized(self) -> None:
        pass

    def limited(self, key: str) -> None:
        pass

    def ended(self, key: str, tokens: int) -> None:
        pass
