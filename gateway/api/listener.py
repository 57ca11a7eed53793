"""One port: a uvicorn server with our protocol, on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import uvicorn

from gateway.api.connection_limits import ConnectionLimits
from gateway.api.intake import Gatekeeper, Intake
from gateway.api.known_heads import KnownHeads
from gateway.api.protocol import GuardedProtocol
from gateway.api.tls import Tls
from gateway.errors import ConfigError
from gateway.open_files import within_open_files

_OF_ADMIN = 128
"""Connections of the admin port: operators, their pages, probes and scrapers."""
_LAST_WORDS_S = 2.0


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    bounds: ConnectionLimits
    keep_alive: int = 75
    """Seconds between two requests of one connection."""
    grace: float = 30.0
    """Seconds that open answers may take at the end."""
    on_exhausted: Callable[[], None] = lambda: None
    """Called when no connection could be taken."""

    def of_admin(self) -> ListenerOptions:
        bounds = replace(self.bounds, max_connections=min(self.bounds.max_connections, _OF_ADMIN))
        return replace(self, bounds=bounds)


class Listener(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, options: ListenerOptions) -> None:
        super().__init__(config)
        self._options = options
        self._intake: Intake | None = None
        self._keepers: list[Gatekeeper] = []

    def intake(self) -> Intake:
        """For sockets that somebody else listens at, once `started`."""
        return Intake(
            self.protocol,
            context=self.config.ssl,
            max_connections=self._options.bounds.max_connections,
            patience=self._options.bounds.head_timeout,
            open_connections=lambda: len(self.server_state.connections),
            on_exhausted=self._options.on_exhausted,
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # its own servers would take connections uncounted
        self._intake = self.intake()
        for sock in sockets or ():
            sock.setblocking(False)
            sock.listen(self.config.backlog)
            self._keepers.append(Gatekeeper(sock, self._intake))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for keeper in self._keepers:
            keeper.stop()
        if self._intake is not None:
            self._intake.abandon()
        await super().shutdown(sockets)
        if tasks := list(self.server_state.tasks):
            # the time for them is over: each tells its client, before what it works with ends under it
            if self.force_exit:
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)

    def protocol(self) -> asyncio.Protocol:
        """For one connection."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def say_goodbye(self) -> None:
        """Every answer from now on ends its connection and says so: no client meets one closed under it."""
        closing = (b"connection", b"close")
        self.config.encoded_headers.append(closing)
        self.server_state.default_headers = [*self.server_state.default_headers, closing]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's: one handler for all listeners."""
        yield


def make_listener(app: Any, options: ListenerOptions, tls: Tls | None) -> Listener:
    """With fewer connections than its options say where the process may not have as many files."""
    bounds = replace(options.bounds, max_connections=within_open_files(options.bounds.max_connections))
    options = replace(options, bounds=bounds)
    protocol: Any = partial(GuardedProtocol, limits=bounds, known=KnownHeads())
    config = uvicorn.Config(
        app,
        loop="none",
        backlog=options.bounds.max_connections,  # a whole burst; the system may allow fewer (somaxconn)
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # nothing here believes X-Forwarded-For, and the middleware costs every request
        timeout_keep_alive=options.keep_alive,
        timeout_graceful_shutdown=int(options.grace),
    )
    config.load()
    if tls is not None:
        config.ssl = tls.context
    return Listener(config, options)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Raises ConfigError, which blames port or address; `flag` is how an operator names another port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        about_port = e.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = f"{flag} takes another port" if about_port else "give an address of this machine"
        raise ConfigError(f"cannot listen on {host}:{port} ({e.strerror}); {remedy}") from e
    sock.set_inheritable(True)
    return sock


def url_of(sock: socket.socket, tls: Tls | None) -> str:
    host, port = sock.getsockname()[:2]
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
