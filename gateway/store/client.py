"""From a URL to a client of redis-py, and from its errors to ours."""

from __future__ import annotations

import re
import ssl
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError as NoScriptError

from gateway.errors import ConfigError, StoreError
from gateway.store.cluster import HEADLESS_ERRORS, SparingCluster
from gateway.store.url import StoreKind, StoreUrl, Tls

Client: TypeAlias = "Redis | RedisCluster"

CLIENT_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError, RuntimeError)
"""All that a call may end in where Redis is the reason. A RuntimeError is uvloop's for a write to a
connection that was closed a moment ago; redis-py lets it pass."""

_REFUSED_CERTIFICATE = re.compile(
    "alert (certificate|bad certificate|unsupported certificate|unknown ca|handshake failure)"
)
"""A server's alert that it wants a certificate of ours, or another one. The last is TLS 1.2's for none."""
_WRONG_URL = re.compile(
    "DB index is out of range|invalid DB index|SELECT is not allowed in cluster mode|"
    "Cluster mode is not enabled|cluster support disabled|unknown command '(SENTINEL|EVALSHA)'"
)
"""The server is another kind of one than the URL says: so it stays until somebody changes one of them."""

_MAX_CONNECTIONS = 4096
"""A blocking read holds one for each worker that is mirrored."""


def client_errors(url: StoreUrl) -> tuple[type[Exception], ...]:
    """All that a call there may end in where Redis is the reason."""
    return (*CLIENT_ERRORS, *HEADLESS_ERRORS) if url.kind is StoreKind.CLUSTER else CLIENT_ERRORS


def make_clients(url: StoreUrl, timeout: float) -> list[Client]:
    """The one that commands go to, then others to be closed with it (those that ask Sentinels).

    Connects to nothing yet. Raises ConfigError for TLS files that can't be used. `timeout`, in
    seconds, is a connect's; who calls bounds a command.
    """
    common: dict[str, Any] = {
        "username": url.username,
        "password": url.password,
        "socket_timeout": None,  # a deadline a command, and blocking reads have another
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "protocol": 2,
        "max_connections": _MAX_CONNECTIONS,
        # who calls decides whether to try again: it knows what it may repeat
        "retry": Retry(NoBackoff(), 0),
        **_tls(url),
    }
    if url.kind is StoreKind.CLUSTER:
        # finding the slot's new owner takes a second try
        common["retry"] = Retry(NoBackoff(), 1)
        nodes = [ClusterNode(host, port) for host, port in url.nodes]
        # one master lost must not take the others' slots along
        return [SparingCluster(startup_nodes=nodes, require_full_coverage=False, **common)]
    if url.kind is StoreKind.SENTINEL:
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            list(url.nodes),
            sentinel_kwargs={
                "username": url.sentinel_username,
                "password": url.sentinel_password,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                "retry": Retry(NoBackoff(), 0),
                **_tls(url),
            },
            db=url.database,
            **common,
        )
        master: Redis = sentinel.master_for(url.service)
        return [master, *sentinel.sentinels]
    host, port = url.nodes[0]
    return [Redis(host=host, port=port, db=url.database, **common)]


def _tls(url: StoreUrl) -> dict[str, Any]:
    if url.tls is None:
        return {}
    _try_files(url.tls)
    return {
        "ssl": True,
        "ssl_ca_certs": url.tls.ca,
        "ssl_certfile": url.tls.cert,
        "ssl_keyfile": url.tls.key,
        "ssl_cert_reqs": "required" if url.tls.verify else "none",
        "ssl_check_hostname": url.tls.verify,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def _try_files(tls: Tls) -> None:
    """redis-py reads them with each connection: what can't be read would look like a Redis that is away."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(path for path in (tls.ca, tls.cert, tls.key) if path is not None)
        raise ConfigError(f"redis URL: {named} can't be used for TLS ({error.strerror or error})") from error


def as_store_error(error: Exception) -> StoreError:
    """What redis-py raised, as ours. The message is the server's own: none of them repeats a credential."""
    text = str(error)
    if isinstance(error, HEADLESS_ERRORS):
        text = f"no node of the cluster is known that could be asked ({type(error).__name__})"
    if isinstance(error, MasterNotFoundError):
        text = text.partition(" : ")[0]  # behind it stand whole clients, and not what ailed them
    if isinstance(error, exceptions.MovedError):
        text = f"it is a node of a cluster (MOVED {text})"
    return StoreError(text or type(error).__name__, kind=_kind(error))


def _kind(error: Exception) -> str:
    text = str(error)
    # a cluster's client has a connection's error in its own one's text alone
    if "CERTIFICATE_VERIFY_FAILED" in text or _REFUSED_CERTIFICATE.search(text):
        return "certificate"
    if isinstance(error, exceptions.MovedError) or _WRONG_URL.search(text):
        return "wrong_url"
    match error:
        case exceptions.AuthenticationError() | exceptions.AuthenticationWrongNumberOfArgsError():
            return "auth"
        case exceptions.NoPermissionError():
            return "forbidden"
        case exceptions.ResponseError() if "ACL failure" in text:  # a script's
            return "forbidden"
        case exceptions.ReadOnlyError():
            return "readonly"
        case exceptions.OutOfMemoryError():
            return "out_of_memory"
        case exceptions.ResponseError() if text.startswith(("NOAUTH", "WRONGPASS")):
            return "auth"
        case exceptions.ResponseError() if "OOM" in text.split(" ", 3)[:3]:
            return "out_of_memory"
        case exceptions.ResponseError() if "READONLY" in text:
            return "readonly"
        case exceptions.ResponseError() if text.startswith(
            ("MASTERDOWN", "CLUSTERDOWN", "LOADING", "NOREPLICAS")
        ):
            return "unavailable"
        case exceptions.TimeoutError():
            return "timeout"
        case exceptions.ResponseError() | exceptions.DataError():
            return "refused"
        case _:
            return "unavailable"
