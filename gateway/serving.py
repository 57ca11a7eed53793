"""Running the app: two listeners on one event loop, signals, and an orderly end.

At SIGTERM or SIGINT the door reports itself not ready, waits for load balancers to notice (`settle`), stops
accepting, lets open answers finish within `shutdown_grace`, and exits. A second signal ends it at once. At
SIGHUP, and when a file with keys or certificates has changed, the settings are read anew.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence

import uvicorn
import uvloop
from prometheus_client import disable_created_metrics

from gateway import early_signals
from gateway.api.listener import ListenerOptions, bind, make_listener, url_of
from gateway.app import App, build
from gateway.auth.watch import FileWatch
from gateway.errors import ConfigError
from gateway.open_files import allow_open_files
from gateway.security import Security
from gateway.settings import Settings
from gateway.settled import settle_memory

log = logging.getLogger("gateway.serving")

OnReady = Callable[[str, str], None]
"""Called with the public and the admin URL once both listen."""
ReadSettings = Callable[[], Settings]
"""The settings as they stand now. Raises ConfigError."""

WATCH_SECONDS = 2.0


def serve(
    settings: Settings, on_ready: OnReady | None = None, read_settings: ReadSettings | None = None
) -> None:
    """Serves until a signal. Without `read_settings`, a reload reads the files that `settings` name, and
    nothing else. Raises ConfigError when a port is taken."""
    # or there is a second series beside every counter, which nobody reads
    disable_created_metrics()  # type: ignore[no-untyped-call]
    allow_open_files(settings.max_connections)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, on_ready, read_settings or (lambda: settings)))


async def _serve(settings: Settings, on_ready: OnReady | None, read_settings: ReadSettings) -> None:
    public_socket = bind(settings.host, settings.port, "--port")
    admin_socket = bind(settings.admin_host, settings.resolved_admin_port, "--admin-port")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with build(settings) as app:
        security = app.security
        options = ListenerOptions(
            security.bounds,
            settings.keep_alive_timeout,
            settings.shutdown_grace,
            app.metrics.accepts_failed.inc,
        )
        public = make_listener(app.public, options, security.public_tls)
        admin = make_listener(app.admin, options.of_admin(), security.admin_tls)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, stop, public)
        watch = FileWatch(
            lambda: Security.files(app.reloader.settings),
            lambda: _reload(app, read_settings),
            interval=WATCH_SECONDS,
            lasting=app.lasting,
        )
        if early_signals.take_over(loop, signal.SIGHUP, _reload, app, read_settings):
            _reload(app, read_settings)
        if early_signals.take_over(loop, signal.SIGUSR2, _no_successor):
            _no_successor()
        watch.start()
        public_task = asyncio.create_task(public.serve([public_socket]), name="public listener")
        admin_task = asyncio.create_task(admin.serve([admin_socket]), name="admin listener")
        await _listening((public, admin), (public_task, admin_task))
        settle_memory()
        urls = url_of(public_socket, security.public_tls), url_of(admin_socket, security.admin_tls)
        if on_ready is not None:
            on_ready(*urls)
        log.info("listening", extra={"public": urls[0], "admin": urls[1]})
        await told_to_stop(stop, public_task, admin_task)
        log.info("shutting down: not ready from now on; open answers may finish")
        app.drain()
        await watch.close()
        await asyncio.sleep(settings.settle)
        public.should_exit = True
        await public_task
        admin.should_exit = True  # metrics can be scraped to the last
        await admin_task


def _on_signal(stop: asyncio.Event, public: uvicorn.Server) -> None:
    if stop.is_set():
        public.force_exit = True
    stop.set()


def _no_successor() -> None:
    log.warning("SIGUSR2 is for several processes: one alone has no successor, and takes a restart")


def _reload(app: App, read_settings: ReadSettings) -> None:
    try:
        waiting = app.reloader.reload(read_settings())
    except ConfigError as error:
        log.error("the settings were not reloaded: the old ones stay", extra={"reason": error.message})
        return
    log.info("settings reloaded", extra={"waiting_for_restart": waiting})


async def told_to_stop(stop: asyncio.Event, *listeners: asyncio.Task[None]) -> None:
    """Until `stop`. Where a listener ends before, so does the process: whoever started it starts it anew,
    while one that hears nobody would stay. Raises what it ended with."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({stopped, *listeners}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise_ended(listeners)
    finally:
        stopped.cancel()


def raise_ended(listeners: Sequence[asyncio.Task[None]]) -> None:
    """Raises where one of them is done."""
    for task in listeners:
        if task.done():
            task.result()
            raise RuntimeError(f"the {task.get_name()} has ended")


async def _listening(servers: Sequence[uvicorn.Server], listeners: Sequence[asyncio.Task[None]]) -> None:
    while not all(s.started for s in servers):
        raise_ended(listeners)
        await asyncio.sleep(0.005)
