"""Running the app: two listeners on one event loop, signals, and an orderly end.

At SIGTERM or SIGINT the door reports itself not ready, waits for load balancers to notice (`settle`), stops
accepting, lets open answers finish within `shutdown_grace`, and exits. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvloop

from gateway.app import build
from gateway.errors import ConfigError
from gateway.settings import Settings

log = logging.getLogger("gateway.serving")

OnReady = Callable[[str, str], None]
"""Called with the public and the admin URL once both listen."""


def serve(settings: Settings, on_ready: OnReady | None = None) -> None:
    """Serves until a signal. Raises ConfigError when a port is taken."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: Settings, on_ready: OnReady | None) -> None:
    public_socket = _bind(settings.host, settings.port, "--port")
    admin_socket = _bind(settings.admin_host, settings.resolved_admin_port, "--admin-port")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with build(settings) as app:
        public = _listener(app.public, settings)
        admin = _listener(app.admin, settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, stop, public)
        public_task = asyncio.create_task(public.serve([public_socket]), name="public listener")
        admin_task = asyncio.create_task(admin.serve([admin_socket]), name="admin listener")
        await _listening(public, admin)
        # what lives now lives as long as the process: the collector need never look at it again
        gc.collect()
        gc.freeze()
        if on_ready is not None:
            on_ready(_url(public_socket), _url(admin_socket))
        log.info("listening", extra={"public": _url(public_socket), "admin": _url(admin_socket)})
        await stop.wait()
        log.info("shutting down: not ready from now on; open answers may finish")
        app.drain()
        await asyncio.sleep(settings.settle)
        public.should_exit = True
        await public_task
        admin.should_exit = True  # metrics can be scraped to the last
        await admin_task


def _on_signal(stop: asyncio.Event, public: uvicorn.Server) -> None:
    if stop.is_set():
        public.force_exit = True
    stop.set()


class _Listener(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: one handler for both listeners."""
        yield


def _listener(app: object, settings: Settings) -> _Listener:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # nothing here believes X-Forwarded-For, and the middleware costs every request
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.shutdown_grace),
    )
    return _Listener(config)


async def _listening(*servers: uvicorn.Server) -> None:
    while not all(s.started for s in servers):  # noqa: ASYNC110 (uvicorn has no event)
        await asyncio.sleep(0.005)


def _bind(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({e.strerror}); {flag} takes another port") from e
    sock.set_inheritable(True)
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
