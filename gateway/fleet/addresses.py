"""Which addresses a worker that is added at run time may have: whoever holds the admin credential commands
the fleet, not every host that the gateway can reach.

A name is resolved once. Over plain HTTP the worker is then known by the address that was checked, so that the
name can't lead elsewhere later; over HTTPS the name stays, since the certificate has to match it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from gateway.errors import ConfigError, Forbidden, InvalidRequest
from gateway.fleet.worker import WorkerSpec

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str], Awaitable[list[str]]]
"""Host name → its addresses. Raises OSError."""

_METADATA = ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32")
"""Link-local, and the metadata services of clouds (AWS, Google, Alibaba): where credentials live."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """`own` are the gateway's own listeners, as (host, port): it must not be made its own worker."""

    networks: tuple[Network, ...]
    own: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, networks: Iterable[str], own: Iterable[tuple[str, int]] = ()) -> AddressRules:
        """Raises ConfigError for what is no network."""
        try:
            return cls(tuple(ipaddress.ip_network(text, strict=False) for text in networks), tuple(own))
        except ValueError as error:
            raise ConfigError(f"worker networks: {error}; like 10.0.0.0/8") from error

    def refuses(self, address: Address, port: int) -> str | None:
        """Why a worker may not be there; None where it may."""
        mapped = getattr(address, "ipv4_mapped", None)
        if mapped is not None:
            return self.refuses(mapped, port)
        if any(_within(address, ipaddress.ip_network(text)) for text in _METADATA):
            return "is link-local or a metadata service"
        if address.is_multicast or address.is_unspecified:
            return "is no host's address"
        if not any(_within(address, network) for network in self.networks):
            return "is outside of the networks that workers may be in (--worker-network)"
        if any(port == number and _same_host(address, host) for host, number in self.own):
            return "is the gateway's own port"
        return None


async def vetted(spec: WorkerSpec, rules: AddressRules, resolve: Resolve) -> WorkerSpec:
    """`spec` with its names pinned to checked addresses. Raises Forbidden or InvalidRequest."""
    return replace(
        spec,
        url=await _vet(spec.url, "url", rules, resolve),
        events=None if spec.events is None else await _vet(spec.events, "events", rules, resolve),
        replay=None if spec.replay is None else await _vet(spec.replay, "replay", rules, resolve),
    )


async def _vet(url: str, field: str, rules: AddressRules, resolve: Resolve) -> str:
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in ("http", "https", "tcp") or host is None:
        raise Forbidden(f"{field}: {parts.scheme}:// is for workers that are configured", param=field)
    if any(segment in (".", "..") for segment in unquote(parts.path).replace("\\", "/").split("/")):
        raise Forbidden(f"{field}: a path with dot segments leads elsewhere", param=field)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        literal = True
        addresses = [ipaddress.ip_address(host)]
    except ValueError:
        literal = False
        addresses = await _resolved(host, field, resolve)
    for address in addresses:
        reason = rules.refuses(address, port)
        if reason is not None:
            raise Forbidden(f"{field}: {address} {reason}", param=field)
    if literal or parts.scheme == "https":
        return url
    pinned = addresses[0]
    shown = f"[{pinned}]" if pinned.version == 6 else str(pinned)
    netloc = shown if parts.port is None else f"{shown}:{parts.port}"
    return parts._replace(netloc=netloc).geturl()


async def _resolved(host: str, field: str, resolve: Resolve) -> list[Address]:
    try:
        # what inet_aton alone takes (127.1, 0x7f000001) is resolved like a name, to what it stands for
        found = [ipaddress.ip_address(text.partition("%")[0]) for text in await resolve(host)]
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"{field}: {host!r} has no address", param=field) from error
    if not found:
        raise InvalidRequest(f"{field}: {host!r} has no address", param=field)
    return found


async def system_resolve(host: str) -> list[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _same_host(address: Address, host: str) -> bool:
    """Whether a listener bound to `host` would hear a connection to `address` on this machine."""
    try:
        bound = ipaddress.ip_address(host)
    except ValueError:
        return address.is_loopback
    # a second loopback address is most often the same host's forwarding to the first
    return address == bound or (address.is_loopback and (bound.is_loopback or bound.is_unspecified))
