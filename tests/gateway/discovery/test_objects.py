"""Pods and EndpointSlices → workers, by hand."""

from __future__ import annotations

import pytest

from gateway.fleet.discovery.objects import Read, read_pod, read_slice
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.worker import WorkerSpec
from tests.gateway.discovery.apiserver import Object, pod

BY_NAME = PortRules()


def specs(read: Read) -> list[WorkerSpec]:
    assert read.faults == []
    return [member.spec for member in read.members]


def test_named_ports_are_enough() -> None:
    read = read_pod(pod("vllm-0", "10.1.2.3"), BY_NAME)
    assert specs(read) == [
        WorkerSpec("http://10.1.2.3:8000", events="tcp://10.1.2.3:5557", replay="tcp://10.1.2.3:5558")
    ]
    (member,) = read.members
    assert (member.name, member.life, member.not_ready) == ("pod chat/vllm-0", "uid-vllm-0", None)


def test_the_only_port_is_the_http_port_whatever_its_name() -> None:
    assert specs(read_pod(pod("a", "10.0.0.1", ports={"serve": 9000}), BY_NAME)) == [
        WorkerSpec("http://10.0.0.1:9000")
    ]


def test_annotations_say_it_all_and_stand_above_settings() -> None:
    said = {
        "prefix-gateway.io/scheme": "https",
        "prefix-gateway.io/port": "8443",
        "prefix-gateway.io/events-port": "kv-events",
        "prefix-gateway.io/replay-port": "7001",
        "prefix-gateway.io/topic": "kv-events",
        "prefix-gateway.io/model": "qwen2-7b",
        "prefix-gateway.io/block-size": "32",
        "prefix-gateway.io/capacity": "5000",
        "prefix-gateway.io/max-requests": "64",
        "prefix-gateway.io/weight": "0.5",
        "other.io/port": "1",
    }
    read = read_pod(pod("a", "10.0.0.1", annotations=said), PortRules("http", "1", "2"))
    assert specs(read) == [
        WorkerSpec(
            "https://10.0.0.1:8443",
            events="tcp://10.0.0.1:5557",
            replay="tcp://10.0.0.1:7001",
            topic="kv-events",
            model="qwen2-7b",
            block_size=32,
            capacity_blocks=5000,
            max_requests=64,
            weight=0.5,
        )
    ]


def test_settings_name_ports_of_pods_that_say_nothing() -> None:
    read = read_pod(pod("a", "10.0.0.1", ports={}), PortRules("8000", "5557", "5558"))
    assert specs(read) == [
        WorkerSpec("http://10.0.0.1:8000", events="tcp://10.0.0.1:5557", replay="tcp://10.0.0.1:5558")
    ]


def test_events_can_be_declined() -> None:
    read = read_pod(pod("a", "10.0.0.1", annotations={"prefix-gateway.io/events-port": "none"}), BY_NAME)
    assert specs(read) == [WorkerSpec("http://10.0.0.1:8000")]


def test_ipv6_addresses_are_bracketed() -> None:
    assert specs(read_pod(pod("a", "fd00::7"), BY_NAME)) == [
        WorkerSpec("http://[fd00::7]:8000", events="tcp://[fd00::7]:5557", replay="tcp://[fd00::7]:5558")
    ]


def test_each_data_parallel_rank_is_a_worker_with_its_own_event_ports() -> None:
    said = {"prefix-gateway.io/dp-ranks": "2", "prefix-gateway.io/replay-port": "5600"}
    read = read_pod(pod("a", "10.0.0.1", annotations=said), BY_NAME)
    assert [(s.id, s.events, s.replay) for s in specs(read)] == [
        ("http://10.0.0.1:8000#dp0", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5600"),
        ("http://10.0.0.1:8000#dp1", "tcp://10.0.0.1:5558", "tcp://10.0.0.1:5601"),
    ]


@pytest.mark.parametrize(
    "item",
    [
        pod("terminating", "10.0.0.1", terminating=True),
        pod("without-address", None),
        pod("ignored", "10.0.0.1", annotations={"prefix-gateway.io/ignore": "true"}),
        pod("ended", "10.0.0.1") | {"status": {"phase": "Succeeded", "podIP": "10.0.0.1"}},
        {"metadata": {"name": "empty"}},
    ],
    ids=lambda item: item["metadata"]["name"],
)
def test_who_stands_for_nobody(item: Object) -> None:
    assert read_pod(item, BY_NAME) == Read()


def test_a_pod_that_is_said_not_to_be_ignored_is_a_worker() -> None:
    read = read_pod(pod("a", "10.0.0.1", annotations={"prefix-gateway.io/ignore": "False"}), BY_NAME)
    assert (len(read.members), read.faults) == (1, [])


def test_an_unready_pod_says_why() -> None:
    (member,) = read_pod(pod("a", "10.0.0.1", ready=False), BY_NAME).members
    assert member.not_ready == "its pod is not ready: containers with unready status: [engine]"


@pytest.mark.parametrize(
    ("annotations", "ports", "fault"),
    [
        ({"prefix-gateway.io/prot": "1"}, None, "annotation prefix-gateway.io/prot is unknown"),
        ({"prefix-gateway.io/port": "web"}, None, "'web' is neither a port number nor one of http"),
        ({"prefix-gateway.io/weight": "-1"}, None, "weight=-1: a number from 0.001 to 1,000 is wanted"),
        ({"prefix-gateway.io/dp-ranks": "0"}, None, "a number of ranks from 1 is wanted"),
        ({"prefix-gateway.io/ignore": "yes"}, None, 'ignore=yes: "true" or "false" is wanted'),
        ({"prefix-gateway.io/ignore": ""}, None, 'ignore=: "true" or "false" is wanted'),
        ({}, {"a": 1, "b": 2}, "several are declared, none is called http"),
        ({}, {}, "none is declared"),
    ],
)
def test_what_cannot_be_used_says_what_is_wrong(
    annotations: dict[str, str], ports: dict[str, int] | None, fault: str
) -> None:
    read = read_pod(pod("a", "10.0.0.1", annotations=annotations, ports=ports), BY_NAME)
    assert read.members == []
    assert fault in read.faults[0]


def endpoint(ip: str, name: str, **conditions: bool) -> Object:
    return {
        "addresses": [ip],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name, "uid": f"uid-{name}"},
    }


def piece(*endpoints: Object, ports: list[Object]) -> Object:
    return {
        "metadata": {"name": "vllm-abc", "namespace": "chat"},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": ports,
    }


def test_a_slice_lists_its_endpoints() -> None:
    ports = [{"name": "http", "port": 8000}, {"name": "kv-events", "port": 5557}]
    read = read_slice(
        piece(
            endpoint("10.0.0.1", "a", ready=True),
            endpoint("10.0.0.2", "b", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.3", "c", ready=False),
            endpoint("10.0.0.4", "d"),
            ports=ports,
        ),
        BY_NAME,
    )
    assert [(m.spec.url, m.spec.events, m.name, m.not_ready) for m in read.members] == [
        ("http://10.0.0.1:8000", "tcp://10.0.0.1:5557", "pod chat/a", None),
        ("http://10.0.0.3:8000", "tcp://10.0.0.3:5557", "pod chat/c", "its endpoint is not ready"),
        # a condition that is left out counts as true
        ("http://10.0.0.4:8000", "tcp://10.0.0.4:5557", "pod chat/d", None),
    ]


def test_a_nameless_port_of_a_slice_is_the_http_port() -> None:
    read = read_slice(piece(endpoint("10.0.0.1", "a"), ports=[{"name": "", "port": 80}]), BY_NAME)
    assert [m.spec.url for m in read.members] == ["http://10.0.0.1:80"]


def test_a_slice_of_names_is_not_for_us() -> None:
    assert read_slice({**piece(ports=[]), "addressType": "FQDN"}, BY_NAME) == Read()
