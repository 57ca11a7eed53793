"""What must stand in an engine's command line for the gateway to work with it, added where it is missing.

An operator's own word is never overruled: a flag that is there stays as it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from gateway.agent.flags import Flags
from gateway.errors import ConfigError
from gateway.fleet.probe import reachable
from gateway.fleet.worker import WorkerSpec

log = logging.getLogger(__name__)

_HIGHEST_PLAIN_PORT = 31_700
"""Above it, twice the port is none any more."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    argv: tuple[str, ...]
    workers: tuple[WorkerSpec, ...]
    """What it will be, as others reach it: one worker a data-parallel rank."""
    added: tuple[str, ...] = ()
    """Flags that were missing."""


def complete(argv: Sequence[str], host: str, engine: WorkerSpec | None = None) -> EngineCommand:
    """The command with what is missing. `host` is where others reach this machine; `engine` is what the
    operator says of the engine, needed for a command that is neither vLLM's, SGLang's nor ours.

    Raises ConfigError for one whose flags can't be read, or that turns off what the gateway lives on.
    """
    flags = Flags(argv)
    match _dialect(argv):
        case "vllm":
            command = _vllm(flags, host)
        case "sglang":
            command = _sglang(flags, host)
        case "workers":
            command = _workers(flags, host)
        case _ if engine is None:
            raise ConfigError(
                f"{argv[0]!r} is no command of vLLM, SGLang or `python -m workers`: say where the engine "
                "will be with --engine URL[,events=…][,replay=…]"
            )
        case _:
            command = EngineCommand(tuple(argv), (engine,))
    if engine is not None:
        command = EngineCommand(command.argv, of_ranks(engine, len(command.workers)), command.added)
    return command


def events_port(http_port: int) -> int:
    """Where an engine publishes unless told otherwise. From its HTTP port, so that several engines on one
    machine, started at the same time, never meet; replay listens behind it."""
    if http_port <= _HIGHEST_PLAIN_PORT:
        return 2 * http_port + 2000
    return 1024 + 2 * (http_port - _HIGHEST_PLAIN_PORT) % 60_000


def _dialect(argv: Sequence[str]) -> str:
    names = [PurePath(word).name for word in argv]
    if "serve" in names[:4] and ("vllm" in names[:3] or "vllm.entrypoints.cli.main" in names[:3]):
        return "vllm"
    if "vllm.entrypoints.openai.api_server" in names[:3]:
        return "vllm"
    if "sglang.launch_server" in names[:3] or names[:2] == ["sglang", "serve"]:
        return "sglang"
    if "workers" in names[:3] and "serve" in names[:4]:
        return "workers"
    return ""


def _vllm(flags: Flags, host: str) -> EngineCommand:
    if flags.has("--no-enable-prefix-caching"):
        raise ConfigError("--no-enable-prefix-caching: without its prefix cache there is nothing to route to")
    flags.add_missing("--enable-prefix-caching")
    flags.add_missing("--enable-prompt-tokens-details")
    port = flags.number("--port", 8000)
    ranks = flags.number("--data-parallel-size", flags.number("-dp", 1))
    config = _events_config(flags, port, ranks, {"enable_kv_cache_events": True})
    return EngineCommand(flags.argv, _ranks(host, port, config, ranks), flags.added)


def _sglang(flags: Flags, host: str) -> EngineCommand:
    if flags.has("--disable-radix-cache"):
        raise ConfigError("--disable-radix-cache: without its prefix cache there is nothing to route to")
    flags.add_missing("--enable-cache-report")
    flags.add_missing("--enable-metrics")
    port = flags.number("--port", 30_000)
    config = _events_config(flags, port, 1, {})
    return EngineCommand(flags.argv, _ranks(host, port, config, 1), flags.added)


def _workers(flags: Flags, host: str) -> EngineCommand:
    if flags.has("--no-prefix-caching"):
        raise ConfigError("--no-prefix-caching: without its prefix cache there is nothing to route to")
    port = flags.number("--port", 8101)
    flags.add_missing("--kv-events-port", str(events_port(port)))
    events = flags.number("--kv-events-port", 0)
    replay = flags.number("--kv-replay-port", events + 1)
    config = {
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": flags.value("--kv-events-topic") or "kv-events",
    }
    return EngineCommand(flags.argv, _ranks(host, port, config, 1), flags.added)


def _events_config(flags: Flags, port: int, ranks: int, always: dict[str, Any]) -> dict[str, Any]:
    """The `--kv-events-config` that the engine will run with; what the operator gave is filled up."""
    first = events_port(port)
    wanted = {
        **always,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{first}",
        "topic": "kv-events",
    }
    name = "--kv-events-config"
    given: dict[str, Any] = {}
    if (text := flags.value(name)) is not None:
        try:
            given = json.loads(text)
        except ValueError:
            given = {"": text}
        if not isinstance(given, dict) or "" in given:
            raise ConfigError(f"{name} {text!r}: a JSON object is wanted")
    given |= flags.dotted(name)
    config = wanted | given
    if config["publisher"] != "zmq" or config.get("enable_kv_cache_events") is False:
        raise ConfigError(f"{name}: events are off or not sent over ZMQ; nobody could know what is cached")
    # each rank counts up from both ports: the replay ports begin where the event ports end
    config.setdefault("replay_endpoint", _behind(str(config["endpoint"]), ranks))
    _apart(config, ranks)
    if config != given:
        flags.replace(name, json.dumps(config, separators=(",", ":")))
    return config


def _apart(config: dict[str, Any], ranks: int) -> None:
    """Raises ConfigError where one rank would publish on the port that another one replays on."""
    events, replay = (str(config[name]).rpartition(":") for name in ("endpoint", "replay_endpoint"))
    if events[2].isdigit() and replay[2].isdigit() and abs(int(replay[2]) - int(events[2])) < ranks:
        raise ConfigError(
            f"--kv-events-config: each of {ranks} ranks adds its number to both ports, and {events[2]} and "
            f"{replay[2]} are not as far apart: leave replay_endpoint out, or put it {ranks} ports behind"
        )


def _behind(endpoint: str, ranks: int) -> str:
    address, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"--kv-events-config: endpoint {endpoint!r} names no port")
    return f"{address}:{int(port) + ranks}"


def _ranks(host: str, port: int, config: dict[str, Any], ranks: int) -> tuple[WorkerSpec, ...]:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    first = WorkerSpec(
        url,
        events=reachable(str(config["endpoint"]), host),
        replay=reachable(str(config["replay_endpoint"]), host),
        topic=str(config.get("topic", "")),
    )
    return of_ranks(first, ranks)


def of_ranks(first: WorkerSpec, ranks: int) -> tuple[WorkerSpec, ...]:
    """A worker for each rank of an engine; engines add a rank's number to the ports of the first."""
    if ranks == 1:
        return (first,)
    return tuple(
        replace(first, events=_offset(first.events, rank), replay=_offset(first.replay, rank), dp_rank=rank)
        for rank in range(ranks)
    )


def _offset(endpoint: str | None, rank: int) -> str | None:
    if endpoint is None:
        return None
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"
