"""The fleet as DNS lists it: SRV records, or all addresses of one name.

``_http._tcp.vllm.chat.svc.cluster.local`` asks for SRV, which brings the ports along; KV events are then
looked for under ``_kv-events._tcp`` and ``_kv-replay._tcp`` of the same name, and joined by target.
``vllm.chat:8000`` asks for A and AAAA. One worker an address, so that each engine is known by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import ConfigError, DiscoveryError
from gateway.fleet.discovery.members import Member, Members
from gateway.fleet.discovery.ports import EVENTS, REPLAY, PortRules, event_port
from gateway.fleet.source import Source
from gateway.fleet.spec import worker_from
from gateway.lasting import Lasting
from gateway.steady import Steady
from gateway.types import Clock

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

log = logging.getLogger(__name__)

LOOKUP_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int


class Names(Protocol):
    """An empty answer is one: the name is there, or not there, and nobody is behind it."""

    async def addresses(self, host: str) -> list[str]:
        """Raises DiscoveryError where nobody answers."""
        ...

    async def services(self, name: str) -> list[Target]:
        """SRV records. Raises DiscoveryError where nobody answers."""
        ...


class DnsNames:
    """Through `dnspython`, with the system's servers or with one given as ``host[:port]``."""

    def __init__(self, server: str = "") -> None:
        self._server = server
        self._resolver: Resolver | None = None

    async def addresses(self, host: str) -> list[str]:
        found = await asyncio.gather(self._ask(host, "A"), self._ask(host, "AAAA"))
        return [str(record) for answer in found for record in answer]

    async def services(self, name: str) -> list[Target]:
        records = await self._ask(name, "SRV")
        return [Target(str(r.target).rstrip("."), int(r.port)) for r in records]  # type: ignore[attr-defined]

    async def _ask(self, name: str, kind: str) -> Iterable[object]:
        from dns.exception import DNSException
        from dns.resolver import NXDOMAIN, NoAnswer

        try:
            self._resolver = self._resolver or self._make()
            return list(await self._resolver.resolve(name, kind, lifetime=LOOKUP_S, search=True))
        except (NXDOMAIN, NoAnswer):
            return []
        except (DNSException, OSError) as error:
            raise DiscoveryError(f"DNS {kind} {name}: {error}") from error

    def _make(self) -> Resolver:
        from dns.asyncresolver import Resolver

        if not self._server:
            return Resolver()
        host, _, port = self._server.partition(":")
        resolver = Resolver(configure=False)
        resolver.nameservers, resolver.port = [host], int(port or 53)
        return resolver


async def listed(name: str, names: Names, rules: PortRules) -> list[Member]:
    """Who is behind `name` now. Raises DiscoveryError; ConfigError for a name that makes no sense."""
    if name.startswith("_"):
        return await _by_services(name, names, rules)
    host, colon, port = name.rpartition(":")
    if not colon or not port.isdigit():
        host, port = name, rules.http
    if not port.isdigit():
        raise ConfigError(f"DNS name {name!r}: name:port is wanted, or an SRV name like _http._tcp.{name}")
    return [
        _member(f"DNS {host}", address, int(port), _number(rules.events), _number(rules.replay))
        for address in await names.addresses(host)
    ]


async def _by_services(name: str, names: Names, rules: PortRules) -> list[Member]:
    _, _, rest = name.partition("._tcp.")
    targets, events, replay = await asyncio.gather(
        names.services(name),
        names.services(f"_{EVENTS}._tcp.{rest}"),
        names.services(f"_{REPLAY}._tcp.{rest}"),
    )
    event_ports = {target.host: target.port for target in events}
    replay_ports = {target.host: target.port for target in replay}
    found: list[Member] = []
    for target in targets:
        ports = {EVENTS: event_ports.get(target.host), REPLAY: replay_ports.get(target.host)}
        named = {key: port for key, port in ports.items() if port is not None}
        found += [
            _member(
                f"DNS {target.host}",
                address,
                target.port,
                event_port(rules.events, named, EVENTS),
                event_port(rules.replay, named, REPLAY),
            )
            for address in await names.addresses(target.host)
        ]
    return found


def _number(wanted: str) -> int | None:
    return int(wanted) if wanted.isdigit() else None


def _member(name: str, address: str, port: int, events: int | None, replay: int | None) -> Member:
    host = f"[{address}]" if ":" in address else address
    fields = {
        "url": f"http://{host}:{port}",
        "events": None if events is None else f"tcp://{host}:{events}",
        "replay": None if events is None or replay is None else f"tcp://{host}:{replay}",
    }
    return Member(worker_from(fields), name)


class DnsDiscovery:
    """Asks for all `names` every `interval_s` (seconds), from `start` to `close`."""

    def __init__(
        self,
        asked: tuple[str, ...],
        names: Names,
        members: Members,
        *,
        rules: PortRules,
        interval_s: float,
        clock: Clock,
        random: Callable[[], float],
        lasting: Lasting | None = None,
    ) -> None:
        self._asked = asked
        self._names = names
        self._members = members
        self._rules = rules
        self._interval_s = interval_s
        self._clock = clock
        self._steady = Steady(3 * interval_s)
        self._random = random
        self._lasting = lasting or Lasting()
        self._task: asyncio.Task[None] | None = None
        self._empty: frozenset[str] = frozenset()
        """Names that nobody was behind when they were asked for last."""
        self.source = Source(
            "dns",
            clock,
            joined=lambda: len(members),
            unusable=lambda: members.refused,
            nobody=lambda: _nobody(self._empty),
        )

    def start(self) -> None:
        self._task = self._lasting.begin(
            self._follow, "discovery by DNS", lost="the last list stands", failed=self.source.broke
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Once, now. Names stand or fall together: half a list would empty the other half."""
        try:
            answers = await asyncio.gather(*(listed(n, self._names, self._rules) for n in self._asked))
        except (DiscoveryError, ConfigError) as error:
            fault, gone = self.source.fault, self._steady.gone(self._clock())
            if gone or fault not in (None, error.message):
                log.warning("DNS can't be asked; the last list stands", extra={"reason": error.message})
            self.source.failed(error.message)
            return
        self._steady.there(self._clock())
        self.source.listed()
        self._note_empty(frozenset(n for n, answer in zip(self._asked, answers, strict=True) if not answer))
        found = [member for answer in answers for member in answer]
        if found:
            self._members.replace(found)
        else:
            self._members.keep_the_answering()

    def _note_empty(self, empty: frozenset[str]) -> None:
        if reason := _nobody(empty - self._empty):
            log.warning("DNS lists no worker", extra={"reason": reason})
        if back := self._empty - empty:
            log.info("DNS lists workers again", extra={"names": ", ".join(sorted(back))})
        self._empty = empty

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * self._random()))


def _nobody(names: frozenset[str]) -> str | None:
    if not names:
        return None
    return f"DNS: no such name, or nobody behind it: {', '.join(sorted(names))}"
