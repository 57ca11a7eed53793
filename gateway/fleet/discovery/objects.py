"""Kubernetes objects as the API server sends them (JSON) → the engines that they stand for. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.errors import ConfigError
from gateway.fleet.discovery.annotations import ignored, worker_specs
from gateway.fleet.discovery.members import Member
from gateway.fleet.discovery.ports import PortRules

JsonObject: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """What one object stands for. `faults` are for a person: why it, or a part of it, can't be used."""

    members: list[Member] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


Reader: TypeAlias = Callable[[JsonObject, PortRules], Read]


def read_pod(pod: JsonObject, rules: PortRules) -> Read:
    """A pod that terminates, has ended or has no address yet stands for nobody."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    annotations = meta.get("annotations") or {}
    address = status.get("podIP")
    gone = meta.get("deletionTimestamp") is not None or status.get("phase") in ("Succeeded", "Failed")
    if gone or not address or ignored(annotations):
        return Read()
    named = {
        port["name"]: port["containerPort"]
        for container in [*(spec.get("containers") or []), *_sidecars(spec)]
        for port in container.get("ports") or []
        if port.get("name") and port.get("protocol", "TCP") == "TCP"
    }
    try:
        specs = worker_specs(address, named, annotations, rules)
    except ConfigError as error:
        return Read(faults=[error.message])
    name, life = f"pod {meta.get('namespace', '')}/{meta.get('name', '')}", str(meta.get("uid", ""))
    reason = _why_not_ready(status)
    return Read([Member(each, name, life, reason) for each in specs])


def _sidecars(spec: JsonObject) -> list[JsonObject]:
    return [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]


def _why_not_ready(status: JsonObject) -> str | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "Ready":
            if condition.get("status") == "True":
                return None
            said = condition.get("message") or condition.get("reason") or ""
            return f"its pod is not ready{': ' if said else ''}{said}"
    return "its pod is not ready"


def read_slice(piece: JsonObject, rules: PortRules) -> Read:
    """One EndpointSlice: its endpoints share ports and annotations. Terminating ones stand for nobody."""
    meta = piece.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    read = Read()
    if ignored(annotations) or piece.get("addressType") not in ("IPv4", "IPv6"):
        return read
    # a Service with one port may leave it nameless
    named = {p.get("name") or "http": p["port"] for p in piece.get("ports") or [] if p.get("port")}
    for endpoint in piece.get("endpoints") or []:
        conditions = endpoint.get("conditions") or {}
        addresses = endpoint.get("addresses") or []
        if conditions.get("terminating") or not addresses:
            continue
        target = endpoint.get("targetRef") or {}
        name = f"{(target.get('kind') or 'endpoint').lower()} {meta.get('namespace', '')}/" + str(
            target.get("name") or addresses[0]
        )
        # a condition that is not there counts as true: so the API says
        ready = conditions.get("ready") is not False
        try:
            # several addresses of one endpoint mean the same engine
            specs = worker_specs(addresses[0], named, annotations, rules)
        except ConfigError as error:
            read.faults.append(error.message)
            return read
        reason = None if ready else "its endpoint is not ready"
        read.members.extend(Member(each, name, str(target.get("uid", "")), reason) for each in specs)
    return read
