"""Asks an engine what it is: `/v1/models`, `/metrics`, `/version`, `/kv_event_sources`, `/health`.

How bytes get there and back is for the one who is handed in; what the answers mean is told here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError, UpstreamError, UpstreamProtocolError
from gateway.fleet.engine_metrics import cache_config, speculates
from gateway.fleet.worker import EngineInfo, Speculates, WorkerSpec
from gateway.kv.keys import BLOCK_SIZE
from gateway.types import SERVER, AskEngine, EngineAnswer

_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Learned:
    """What one visit taught. `events`, `replay` and `topic` are None where the engine does not say."""

    info: EngineInfo
    events: str | None = None
    replay: str | None = None
    topic: str | None = None
    unheard: bool = False
    """A question that it need not answer got no HTTP answer: it is worth asking again soon."""


class EngineProbe:
    """Visits engines. Every question ends within `timeout` seconds."""

    def __init__(self, ask: AskEngine, *, timeout: float = 2.0, gateways: bool = False) -> None:
        """`gateways` may be workers, too."""
        self._ask = ask
        self._timeout = timeout
        self._gateways = gateways

    async def alive(self, spec: WorkerSpec) -> None:
        """Returns when `/health` says 2xx; raises an UpstreamError with the reason when not, and ConfigError
        where it is a gateway's, and that may be no worker."""
        answer = await self._get(spec, "/health")
        if not answer.good:
            raise UpstreamProtocolError(f"/health answers {answer.status}")
        if _json_object(answer.body).get("server") != SERVER:
            return
        if not self._gateways:
            raise ConfigError(
                "this is a prefix-gateway and no engine: give the engines behind it as workers; a gateway "
                "that serves other engines than this one may be a worker with --worker-gateways"
            )
        # it answers as long as it lives, whether its engines do or not
        ready = await self._get(spec, "/ready")
        if not ready.good:
            raise UpstreamProtocolError(f"not ready: {_json_object(ready.body).get('reason', ready.status)}")

    async def learn(self, spec: WorkerSpec, known: EngineInfo | None = None) -> Learned:
        """Raises an UpstreamError where the engine can't be reached or does not name a model. Whatever else
        it does not tell (metrics closed, no version) keeps the operator's word or the default; where it
        fails to answer at all, what is `known` of it."""
        models = await self._get(spec, "/v1/models")
        if not models.good:
            raise UpstreamProtocolError(f"/v1/models answers {models.status}")
        entries = model_entries(models.body)
        metrics = await self._optional(spec, "/metrics")
        version = await self._optional(spec, "/version")
        info = engine_info(
            spec,
            entries,
            _config(metrics, spec, known),
            known.version if version is None and known is not None else _json_object(version).get("version"),
            _speculates(metrics, known),
        )
        unheard = metrics is None or version is None
        if spec.events is not None:
            return Learned(info, unheard=unheard)
        sources = await self._optional(spec, "/kv_event_sources")
        found = event_source(_json_object(sources), spec)
        return Learned(info, *found, unheard=unheard or sources is None)

    async def _optional(self, spec: WorkerSpec, path: str) -> bytes | None:
        """Empty where it has nothing to say; None where there was no answer: it hung up, was silent, or what
        it said is not HTTP. None of that keeps it from serving."""
        try:
            answer = await self._get(spec, path)
        except UpstreamError:
            return None
        return answer.body if answer.good else b""

    async def _get(self, spec: WorkerSpec, path: str) -> EngineAnswer:
        return await self._ask(spec.url, path, timeout=self._timeout)


def _config(metrics: bytes | None, spec: WorkerSpec, known: EngineInfo | None) -> dict[str, int]:
    if metrics is None:
        if known is None:
            return {}
        return {"block_size": known.block_size, "num_blocks": known.capacity_blocks}
    return cache_config(metrics.decode(errors="replace"), spec.dp_rank or 0)


def _speculates(metrics: bytes | None, known: EngineInfo | None) -> Speculates:
    if metrics is None:
        return known.speculates if known is not None else ""
    return speculates(metrics.decode(errors="replace"))


def model_entries(content: bytes) -> tuple[dict[str, object], ...]:
    """Entries of a `/v1/models` answer, fields kept. Raises UpstreamProtocolError where there are none."""
    data = _json_object(content).get("data")
    entries = data if isinstance(data, list) else []
    good = tuple(e for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str))
    if not good:
        raise UpstreamProtocolError("/v1/models names no model")
    return good


def engine_info(
    spec: WorkerSpec,
    entries: tuple[dict[str, object], ...],
    config: Mapping[str, int],
    version: object = None,
    speculates: Speculates = "",
) -> EngineInfo:
    """An operator's word stands above the engine's. Entries with a parent are adapters; of those without,
    the first is the base model's name in its block keys, the others are further names of it."""
    bases = [entry for entry in entries if not entry.get("parent")] or [entries[0]]
    base = next((entry for entry in bases if entry["id"] == spec.model), bases[0])
    max_len, root = base.get("max_model_len"), base.get("root")
    return EngineInfo(
        model=spec.model or str(base["id"]),
        adapters=tuple(str(entry["id"]) for entry in entries if entry not in bases),
        max_model_len=max_len if isinstance(max_len, int) else None,
        model_path=root if isinstance(root, str) else None,
        block_size=spec.block_size or config.get("block_size", BLOCK_SIZE),
        capacity_blocks=spec.capacity_blocks or config.get("num_blocks", 0),
        version=version if isinstance(version, str) else "",
        model_entries=entries,
        served_names=tuple(str(entry["id"]) for entry in bases if entry is not base),
        adapters_by_colon=base.get("owned_by") == "sglang",
        speculates=speculates,
    )


def event_source(
    sources: Mapping[str, object], spec: WorkerSpec
) -> tuple[str | None, str | None, str | None]:
    """(events, replay, topic) of this worker's rank in a `/kv_event_sources` answer (vLLM in dev mode)."""
    source = sources.get(str(spec.dp_rank or 0))
    if not isinstance(source, dict) or not source.get("enable_kv_cache_events"):
        return None, None, None
    if source.get("publisher", "zmq") != "zmq":
        return None, None, None
    host = urlsplit(spec.url).hostname or ""
    topic = source.get("topic")
    return (
        reachable(source.get("endpoint"), host),
        reachable(source.get("replay_endpoint"), host),
        topic if isinstance(topic, str) else None,
    )


def reachable(endpoint: object, host: str) -> str | None:
    """An endpoint as an engine binds it (``tcp://*:5557``) as one to connect to: on the engine's own host,
    whatever address it names. Another interface of it is for the operator to name: nobody is led elsewhere by
    what an engine says."""
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return None
    _, colon, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) <= _LAST_PORT:
        return None
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


def _json_object(content: bytes | None) -> dict[str, object]:
    """{} for whatever is not a JSON object: engines answer in many ways where they have no such path."""
    if not content:
        return {}
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return data if isinstance(data, dict) else {}
