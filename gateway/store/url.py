"""Where Redis is: one URL for a single server, for Sentinel and for a cluster.

``redis://[user:password@]host[:6379][/database]``,
``redis+sentinel://…@host:26379,host:26379/service[/database]``, ``redis+cluster://…@host:6379,host:6379``.
``rediss`` in place of ``redis`` is TLS, with ``?ca=``, ``cert=``, ``key=`` (paths) and ``verify=no``.
Sentinels' own credentials: ``?sentinel_user=`` and ``sentinel_password=``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.errors import ConfigError

_TLS_OPTIONS = frozenset({"ca", "cert", "key", "verify"})
_SENTINEL_OPTIONS = frozenset({"sentinel_user", "sentinel_password"})
_DIGITS = 9
"""Of a database's number, more than any server has."""


class StoreKind(Enum):
    STANDALONE = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Tls:
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Its text (`str`) names servers and never a password."""

    kind: StoreKind
    nodes: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    service: str = ""
    """The master's name, with Sentinel."""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + (f"+{self.kind.value}" if self.kind.value else "")
        nodes = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        return f"{scheme}://{nodes}" + (f"/{self.service}" if self.service else "")


_ENCODE = (
    "redis URL: a character of its user name or password must be percent-encoded (/ is %2F, ? %3F, # %23, "
    "@ %40, : %3A, [ %5B, ] %5D); or GATEWAY_REDIS_PASSWORD has the password as it is"
)


def parse_store_url(text: str, password: str | None = None) -> StoreUrl:
    """`password`, as it is, stands above one in the URL, where `/` and its like must be percent-encoded.
    Raises ConfigError, which repeats nothing of the URL but names of options: a parser ends the login early
    where a character was not encoded, and takes the rest for a host, a path or a database."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ConfigError(_ENCODE) from None
    base, _, variant = parts.scheme.partition("+")
    try:
        kind = StoreKind(variant)
    except ValueError:
        kind = None
    if base not in ("redis", "rediss") or kind is None:
        raise ConfigError(
            "redis URL: it begins with redis:// or rediss:// (TLS), and with +sentinel or +cluster before ://"
            " where those are meant"
        )
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, inside = login.partition(":")
    cut_short = not login or not hosts
    if "@" in parts.path or parts.fragment or (cut_short and "@" in parts.query):
        raise ConfigError(_ENCODE)
    default_port = 26379 if kind is StoreKind.SENTINEL else 6379
    nodes = tuple(_node(number, host, default_port) for number, host in enumerate(hosts.split(","), 1))
    options = _options(parts.query, kind, tls=base == "rediss")
    service, database = _path(parts.path, kind)
    return StoreUrl(
        kind=kind,
        nodes=nodes,
        username=unquote(username) or None,
        password=password or unquote(inside) or None,
        database=database,
        service=service,
        sentinel_username=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
        tls=None
        if base == "redis"
        else Tls(options.get("ca"), options.get("cert"), options.get("key"), options.get("verify") != "no"),
    )


def _options(query: str, kind: StoreKind, *, tls: bool) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    allowed = (_TLS_OPTIONS if tls else frozenset()) | (
        _SENTINEL_OPTIONS if kind is StoreKind.SENTINEL else frozenset()
    )
    for name in options.keys() - allowed:
        if "@" in query:
            raise ConfigError(_ENCODE)
        raise ConfigError(
            f"redis URL: option {name!r} has no meaning here; there are: {sorted(allowed) or 'none'}"
        )
    if options.get("verify", "no") not in ("no", "yes"):
        raise ConfigError("redis URL: verify is yes or no")
    return options


def _path(path: str, kind: StoreKind) -> tuple[str, int]:
    pieces = [unquote(piece) for piece in path.split("/") if piece]
    service = ""
    if kind is StoreKind.SENTINEL:
        if not pieces:
            raise ConfigError("redis URL: Sentinel needs the master's name: redis+sentinel://host:26379/NAME")
        service = pieces.pop(0)
    if not pieces:
        return service, 0
    if kind is StoreKind.CLUSTER:
        raise ConfigError("redis URL: a cluster has no numbered databases")
    if len(pieces) > 1 or not pieces[0].isdecimal() or len(pieces[0]) > _DIGITS:
        raise ConfigError("redis URL: behind the host stands the number of a database, as in /0, or nothing")
    return service, int(pieces[0])


def _node(number: int, text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
        port = None
    if not host:
        raise ConfigError(f"redis URL: its server {number} is no host[:port]")
    return host, default_port if port is None else port
