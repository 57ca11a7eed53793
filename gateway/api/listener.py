"""One port: a uvicorn server with our protocol, on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn

from gateway.api.protocol import ConnectionLimits, GuardedProtocol
from gateway.api.tls import Tls
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    bounds: ConnectionLimits
    keep_alive: int = 75
    """Seconds between two requests of one connection."""
    grace: float = 30.0
    """Seconds that open answers may take at the end."""


class Listener(uvicorn.Server):
    def protocol(self) -> asyncio.Protocol:
        """For a connection that somebody else accepted, once `started`."""
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
    protocol: Any = partial(GuardedProtocol, limits=options.bounds)
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
    return Listener(config)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Raises ConfigError; `flag` is how an operator names another port."""
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


def url_of(sock: socket.socket, tls: Tls | None) -> str:
    host, port = sock.getsockname()[:2]
    return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
