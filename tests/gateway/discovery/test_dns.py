"""DNS discovery against a name server of our own, over real UDP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from gateway.app import build
from gateway.errors import ConfigError
from gateway.fleet.discovery.dns import DnsDiscovery, DnsNames, listed
from gateway.fleet.discovery.members import Members
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.load import LoadBoard
from gateway.fleet.probe import Learned
from gateway.fleet.registry import Registry
from gateway.fleet.worker import EngineInfo
from gateway.settings import Settings
from gateway.types import WorkerId
from tests.gateway.discovery.test_source import figures

pytestmark = pytest.mark.anyio

HEADLESS = {
    ("_http._tcp.vllm.chat.", "SRV"): ["0 50 8000 a.vllm.chat.", "0 50 9000 b.vllm.chat."],
    ("_kv-events._tcp.vllm.chat.", "SRV"): ["0 50 5557 a.vllm.chat.", "0 50 6557 b.vllm.chat."],
    ("_kv-replay._tcp.vllm.chat.", "SRV"): ["0 50 5558 a.vllm.chat."],
    ("a.vllm.chat.", "A"): ["10.0.0.1"],
    ("b.vllm.chat.", "A"): ["10.0.0.2"],
    ("vllm.chat.", "A"): ["10.0.0.1", "10.0.0.2"],
    ("vllm.chat.", "AAAA"): ["fd00::1"],
}


@dataclass
class NameServer(asyncio.DatagramProtocol):
    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    fails: bool = False
    port: int = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        kind = question.rdtype.name
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        found = self.records.get((question.name.to_text(), kind))
        if self.fails:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif found is not None:
            reply.answer.append(dns.rrset.from_text_list(question.name, 5, "IN", kind, found))
        elif not any(name == question.name.to_text() for name, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(reply.to_wire(), addr)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: NameServer(dict(HEADLESS)), local_addr=("127.0.0.1", 0)
    )
    try:
        yield protocol
    finally:
        transport.close()


def names(server: NameServer) -> DnsNames:
    return DnsNames(f"127.0.0.1:{server.port}")


async def specs(name: str, server: NameServer, rules: PortRules) -> list[tuple[str, str | None, str | None]]:
    found = await listed(name, names(server), rules)
    return sorted((m.spec.url, m.spec.events, m.spec.replay) for m in found)


async def test_srv_brings_ports_and_finds_events_beside_them(server: NameServer) -> None:
    assert await specs("_http._tcp.vllm.chat", server, PortRules()) == [
        ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),
        ("http://10.0.0.2:9000", "tcp://10.0.0.2:6557", None),
    ]


async def test_addresses_of_both_families_with_ports_from_settings(server: NameServer) -> None:
    assert await specs("vllm.chat:8000", server, PortRules(events="5557", replay="5558")) == [
        ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),
        ("http://10.0.0.2:8000", "tcp://10.0.0.2:5557", "tcp://10.0.0.2:5558"),
        ("http://[fd00::1]:8000", "tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558"),
    ]
    assert len(await specs("vllm.chat", server, PortRules(http="8000"))) == 3


async def test_a_name_without_a_port_is_refused(server: NameServer) -> None:
    with pytest.raises(ConfigError, match="name:port is wanted"):
        await listed("vllm.chat", names(server), PortRules())


@asynccontextmanager
async def looking(
    server: NameServer, *asked: str
) -> AsyncIterator[tuple[Registry, DnsDiscovery, Callable[[], list[str]]]]:
    registry = Registry(LoadBoard(), lambda: 0.0)
    discovery = DnsDiscovery(
        asked,
        names(server),
        Members(registry, "dns"),
        rules=PortRules(),
        interval_s=0.01,
        clock=lambda: 0.0,
        random=lambda: 0.5,
    )
    yield registry, discovery, lambda: sorted(w.id for w in registry.workers())


async def test_who_leaves_a_name_leaves_the_fleet(server: NameServer) -> None:
    async with looking(server, "_http._tcp.vllm.chat") as (_, discovery, workers):
        await discovery.look()
        assert workers() == ["http://10.0.0.1:8000", "http://10.0.0.2:9000"]
        server.records["_http._tcp.vllm.chat.", "SRV"] = ["0 50 8000 a.vllm.chat."]
        await discovery.look()
        assert workers() == ["http://10.0.0.1:8000"]


async def test_servers_that_fail_cost_nobody(server: NameServer) -> None:
    async with looking(server, "_http._tcp.vllm.chat", "vllm.chat:8000") as (_, discovery, workers):
        await discovery.look()
        before = workers()
        server.fails = True
        await discovery.look()
        assert workers() == before
        assert discovery.source.fault is not None
        seen = figures(discovery.source)
        assert (seen["up"], seen["lists"], seen["failures[failed]"]) == (0, 1, 1)
        assert seen["workers"] == len(before)
        server.fails = False
        await discovery.look()
        assert discovery.source.fault is None


async def test_a_name_that_vanishes_keeps_those_who_answer(server: NameServer) -> None:
    async with looking(server, "_http._tcp.vllm.chat") as (registry, discovery, workers):
        await discovery.look()
        a = WorkerId("http://10.0.0.1:8000")
        registry.learned(a, Learned(EngineInfo("m", model_entries=({"id": "m"},))))
        registry.set_health(a, True)
        server.records.clear()
        await discovery.look()
        assert workers() == [a]
        registry.set_health(a, False, "can't connect")
        await discovery.look()
        assert workers() == []


async def test_a_name_that_does_not_exist_is_named_once(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.records["empty.chat.", "TXT"] = ["x"]  # there, and without an address
    asked = ("vllm.caht:8000", "empty.chat:8000")
    reason = "DNS: no such name, or nobody behind it: empty.chat:8000, vllm.caht:8000"
    with caplog.at_level(logging.INFO, "gateway.fleet.discovery"):
        async with looking(server, *asked) as (_, discovery, workers):
            await discovery.look()
            await discovery.look()
            assert (workers(), discovery.source.reason) == ([], reason)
            server.records["vllm.caht.", "A"] = ["10.0.0.1"]
            await discovery.look()
            assert workers() == ["http://10.0.0.1:8000"]
            assert discovery.source.reason == "DNS: no such name, or nobody behind it: empty.chat:8000"
    said = [(r.msg, vars(r).get("reason") or vars(r).get("names")) for r in caplog.records if "DNS" in r.msg]
    assert said == [("DNS lists no worker", reason), ("DNS lists workers again", "vllm.caht:8000")]


async def test_a_gateway_that_is_not_ready_says_that_the_name_does_not_exist(server: NameServer) -> None:
    settings = Settings(discovery="dns", dns_names=("vllm.caht:8000",), dns_server=f"127.0.0.1:{server.port}")
    async with build(settings) as app, asyncio.timeout(60):
        while "not listed yet" in (app.unready() or ""):  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.01)
        said = app.unready()
    assert said == "no workers are registered (DNS: no such name, or nobody behind it: vllm.caht:8000)"


async def test_it_asks_again_and_again(server: NameServer) -> None:
    async with looking(server, "_http._tcp.vllm.chat") as (_, discovery, workers):
        discovery.start()
        async with asyncio.timeout(60):
            while len(workers()) < 2:  # noqa: ASYNC110 (what is waited for has no event)
                await asyncio.sleep(0.01)
            server.records["_http._tcp.vllm.chat.", "SRV"].append("0 50 8000 vllm.chat.")
            while len(workers()) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await discovery.close()
    # 10.0.0.1:8000 is behind both names, and one worker
    assert workers() == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://10.0.0.2:9000",
        "http://[fd00::1]:8000",
    ]
