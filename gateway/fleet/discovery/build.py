"""A discovery from plain values: what the composition root asks for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from gateway.errors import ConfigError, MissingExtra
from gateway.fleet.discovery.cluster import ApiServer, Query
from gateway.fleet.discovery.dns import DnsDiscovery, DnsNames
from gateway.fleet.discovery.kubernetes import KubernetesDiscovery
from gateway.fleet.discovery.members import Members
from gateway.fleet.discovery.objects import read_pod, read_slice
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.registry import Registry
from gateway.fleet.source import Source
from gateway.lasting import Lasting
from gateway.types import Clock

_READERS = {"pods": read_pod, "endpointslices": read_slice}


class Discovery(Protocol):
    @property
    def source(self) -> Source:
        """How the one that lists the workers is doing."""
        ...

    def start(self) -> None:
        """Needs a running loop."""
        ...

    async def close(self) -> None: ...


def kubernetes(
    registry: Registry,
    *,
    resource: str,
    selector: str,
    namespace: str,
    kubeconfig: Path | None,
    rules: PortRules,
    clock: Clock,
    random: Callable[[], float],
    lasting: Lasting,
) -> Discovery:
    """Raises ConfigError for what can't work, before anything runs."""
    if not selector:
        raise ConfigError("Kubernetes: --kubernetes-selector is wanted, like app=vllm")
    _need("kubernetes_asyncio", "kubernetes")
    return KubernetesDiscovery(
        ApiServer(Query(resource, selector, namespace, kubeconfig)),
        Members(registry, "kubernetes"),
        _READERS[resource],
        rules=rules,
        clock=clock,
        random=random,
        lasting=lasting,
    )


def dns(
    registry: Registry,
    *,
    names: tuple[str, ...],
    server: str,
    interval_s: float,
    rules: PortRules,
    clock: Clock,
    random: Callable[[], float],
    lasting: Lasting,
) -> Discovery:
    """Raises ConfigError for what can't work, before anything runs."""
    if not names:
        raise ConfigError("DNS: --dns-name is wanted, like _http._tcp.vllm.chat.svc.cluster.local")
    for name in names:
        if not name.startswith("_") and not (name.rpartition(":")[2].isdigit() or rules.http.isdigit()):
            raise ConfigError(
                f"DNS name {name!r}: name:port is wanted, or an SRV name like _http._tcp.{name}"
            )
    _need("dns", "dns")
    return DnsDiscovery(
        names,
        DnsNames(server),
        Members(registry, "dns"),
        rules=rules,
        interval_s=interval_s,
        clock=clock,
        random=random,
        lasting=lasting,
    )


def _need(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise MissingExtra(f"discovery by {extra}", extra)
