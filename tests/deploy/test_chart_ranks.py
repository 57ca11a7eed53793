"""Data-parallel engines: every rank's ports are told, open, and nobody else's."""

from __future__ import annotations

import json

import click
import pytest

from gateway.agent.command import of_ranks
from gateway.cli.main import cli
from gateway.fleet.discovery.objects import read_pod
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.spec import parse_worker
from tests.deploy.charts import Object, Rendered, refusal, render
from tests.deploy.content import NAME, named
from tests.deploy.tools import Tools

RANKS = [
    ("http://10.1.2.3:8000#dp0", "tcp://10.1.2.3:5557", "tcp://10.1.2.3:5561"),
    ("http://10.1.2.3:8000#dp1", "tcp://10.1.2.3:5558", "tcp://10.1.2.3:5562"),
    ("http://10.1.2.3:8000#dp2", "tcp://10.1.2.3:5559", "tcp://10.1.2.3:5563"),
    ("http://10.1.2.3:8000#dp3", "tcp://10.1.2.3:5560", "tcp://10.1.2.3:5564"),
]
"""Engines add a rank's number to the port of events and to that of the replay."""


def pod(rendered: Rendered, name: str) -> Object:
    template = rendered.get("Deployment", f"{NAME}-{name}")["spec"]["template"]
    return {
        "metadata": {"name": "p-0", "namespace": "llm", "uid": "u", **template["metadata"]},
        "spec": template["spec"],
        "status": {"phase": "Running", "podIP": "10.1.2.3",
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def test_each_rank_is_a_worker(helm4: Tools) -> None:
    rendered = render(helm4, named("ranks"))
    args = rendered.container(f"{NAME}-engine", "engine")["args"]
    assert "--data-parallel-size=4" in args
    (events,) = [json.loads(a.partition("=")[2]) for a in args if a.startswith("--kv-events-config=")]
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5561")
    found = read_pod(pod(rendered, "engine"), PortRules()).members
    assert [(m.spec.id, m.spec.events, m.spec.replay) for m in found] == RANKS
    ports = rendered.container(f"{NAME}-engine", "engine")["ports"]
    assert sorted(p["containerPort"] for p in ports) == [*range(5557, 5565), 8000]
    assert len({p["name"] for p in ports}) == len(ports)
    (small,) = read_pod(pod(rendered, "small"), PortRules()).members
    assert (small.spec.id, small.spec.replay) == ("http://10.1.2.3:8000", "tcp://10.1.2.3:5558")
    assert not any("data-parallel" in a for a in rendered.container(f"{NAME}-small", "engine")["args"])
    # another kind of engine starts without the first pool's ranks
    other = render(helm4, named("ranks"), "extraEngines.cpu.type=reference", "extraEngines.cpu.model=tiny")
    (cpu,) = read_pod(pod(other, "cpu"), PortRules()).members
    assert cpu.spec.dp_rank is None


def test_the_network_policy_lets_the_gateway_to_all_of_them(helm4: Tools) -> None:
    policy = render(helm4, named("ranks")).get("NetworkPolicy", f"{NAME}-engines")["spec"]["ingress"][0]
    assert policy["ports"][3:] == [{"port": 5557, "endPort": 5564}]
    (peer,) = policy["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    alone = render(helm4).get("NetworkPolicy", f"{NAME}-engines")["spec"]["ingress"][0]
    assert alone["ports"] == [{"port": "http"}, {"port": "kv-events"}, {"port": "kv-replay"}]


def test_an_agent_registers_every_rank(helm4: Tools) -> None:
    args = render(helm4, named("ranks"), "discovery.type=redis").container(f"{NAME}-engine", "agent")["args"]
    command = cli.get_command(click.Context(cli), args[0])
    assert command is not None
    given = [a.replace("$(POD_IP)", "10.1.2.3") for a in args[1:]]
    params = command.make_context("agent", [*given, "--redis-url=redis://r"]).params
    workers = of_ranks(parse_worker(params["engine"]), params["ranks"])
    assert [(w.id, w.events, w.replay) for w in workers] == RANKS


def test_a_rank_has_a_gpu_where_nothing_else_is_said(helm4: Tools) -> None:
    engine = render(helm4, None, "engine.dataParallelSize=2").container(f"{NAME}-engine", "engine")
    assert engine["resources"] == {"limits": {"nvidia.com/gpu": 2}}


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("engine.type=sglang",), "of vLLM alone; take more replicas of sglang"),
        (("discovery.resource=endpointslices",), "ranks are told by pods' annotations"),
        (("discovery.type=dns", "discovery.dnsNames={_http._tcp.x}"), "ranks are told by pods' annotations"),
    ],
)
def test_ranks_that_nobody_would_find_are_refused(helm4: Tools, sets: tuple[str, ...], said: str) -> None:
    assert said in refusal(helm4, None, "engine.dataParallelSize=2", *sets)
