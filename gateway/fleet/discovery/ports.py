"""Which ports an engine listens on: by number or by name, from annotations or from the gateway's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import ConfigError

NamedPorts: TypeAlias = Mapping[str, int]
"""Of a pod's containers, or of an EndpointSlice."""

HTTP = ("http", "https", "http-api", "api")
EVENTS = "kv-events"
REPLAY = "kv-replay"


@dataclass(frozen=True, slots=True)
class PortRules:
    """Names or numbers. Empty: the named ports above where there are some, else the only port there is."""

    http: str = ""
    events: str = ""
    replay: str = ""


def http_port(wanted: str, named: NamedPorts) -> int:
    """Raises ConfigError where it can't be told."""
    if wanted:
        return _port(wanted, named, "port")
    for name in HTTP:
        if name in named:
            return named[name]
    others = [number for name, number in named.items() if name not in (EVENTS, REPLAY)]
    if len(others) != 1:
        raise ConfigError(
            f"port: {'none is declared' if not others else 'several are declared, none is called http'}; "
            "name one in the annotation or with --discovery-port"
        )
    return others[0]


def event_port(wanted: str, named: NamedPorts, usual: str) -> int | None:
    """None where the engine publishes nothing, or says itself where."""
    if wanted == "none":
        return None
    return _port(wanted, named, usual) if wanted else named.get(usual)


def _port(wanted: str, named: NamedPorts, what: str) -> int:
    if wanted.isascii() and wanted.isdigit() and 0 < int(wanted) < 65536:
        return int(wanted)
    if wanted not in named:
        known = ", ".join(named) or "no named ports"
        raise ConfigError(f"{what}: {wanted!r} is neither a port number nor one of {known}")
    return named[wanted]
