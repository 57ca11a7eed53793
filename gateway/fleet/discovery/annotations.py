"""What a pod or EndpointSlice may say of its engine, as annotations ``prefix-gateway.io/<name>``."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import ConfigError
from gateway.fleet.discovery.ports import EVENTS, REPLAY, NamedPorts, PortRules, event_port, http_port
from gateway.fleet.spec import worker_from
from gateway.fleet.worker import WorkerSpec

PREFIX = "prefix-gateway.io/"
_SPEC = {
    "model": "model",
    "topic": "topic",
    "block-size": "block_size",
    "capacity": "capacity",
    "max-requests": "max_requests",
    "weight": "weight",
}
_OTHERS = frozenset({"ignore", "scheme", "port", "events-port", "replay-port", "dp-ranks"})


def ignored(annotations: Mapping[str, str]) -> bool:
    """Another word is `worker_specs`' to refuse."""
    return annotations.get(PREFIX + "ignore", "").lower() == "true"


def worker_specs(
    address: str, named: NamedPorts, annotations: Mapping[str, str], rules: PortRules
) -> list[WorkerSpec]:
    """One per data-parallel rank. Annotations stand above `rules`, `rules` above named ports. Raises
    ConfigError that names the annotation."""
    said = {k.removeprefix(PREFIX): v for k, v in annotations.items() if k.startswith(PREFIX)}
    for name in said:
        if name not in _SPEC and name not in _OTHERS:
            raise ConfigError(f"annotation {PREFIX}{name} is unknown; known: {', '.join(_names())}")
    if (ignore := said.get("ignore", "false")).lower() not in ("true", "false"):
        raise ConfigError(f'annotation {PREFIX}ignore={ignore}: "true" or "false" is wanted')
    scheme = said.get("scheme", "http")
    host = f"[{address}]" if ":" in address else address
    fields: dict[str, object] = {_SPEC[name]: value for name, value in said.items() if name in _SPEC}
    fields["url"] = f"{scheme}://{host}:{http_port(said.get('port', rules.http), named)}"
    events = event_port(said.get("events-port", rules.events), named, EVENTS)
    replay = event_port(said.get("replay-port", rules.replay), named, REPLAY)
    ranks = _ranks(said["dp-ranks"]) if "dp-ranks" in said else [None]
    return [_rank_spec(fields, host, events, replay, rank) for rank in ranks]


def _rank_spec(
    fields: Mapping[str, object], host: str, events: int | None, replay: int | None, rank: int | None
) -> WorkerSpec:
    # engines bind each rank's publisher to the configured port plus its rank
    offset = rank or 0
    return worker_from(
        {
            **fields,
            "events": None if events is None else f"tcp://{host}:{events + offset}",
            "replay": None if events is None or replay is None else f"tcp://{host}:{replay + offset}",
            "dp_rank": rank,
        }
    )


def _ranks(text: str) -> list[int | None]:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1024:
        raise ConfigError(f"annotation {PREFIX}dp-ranks={text}: a number of ranks from 1 is wanted")
    return list(range(int(text)))


def _names() -> list[str]:
    return sorted([*_SPEC, *_OTHERS])
