"""The watch against an API server's double, over real HTTP and through the real client library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.fleet.discovery.cluster import ApiServer as Cluster
from gateway.fleet.discovery.cluster import Query
from gateway.fleet.discovery.kubernetes import KubernetesDiscovery
from gateway.fleet.discovery.members import Members
from gateway.fleet.discovery.objects import read_pod, read_slice
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.load import LoadBoard
from gateway.fleet.registry import Registry
from gateway.types import Clock
from tests.gateway.discovery.apiserver import ApiServer, api_server, pod, serving
from tests.gateway.discovery.test_source import figures

pytestmark = pytest.mark.anyio
NEVER = 3600.0


@pytest.fixture
async def server(free_port: Callable[[], int]) -> AsyncIterator[ApiServer]:
    async with api_server(free_port()) as state:
        yield state


@asynccontextmanager
async def following(
    server: ApiServer,
    folder: Path,
    *,
    resource: str = "pods",
    token: str | None = None,
    quiet: float = NEVER,
    clock: Clock = lambda: 0.0,
) -> AsyncIterator[tuple[Registry, KubernetesDiscovery]]:
    config = server.kubeconfig(folder, **({} if token is None else {"token": token}))
    registry = Registry(LoadBoard(), lambda: 0.0)
    discovery = KubernetesDiscovery(
        Cluster(Query(resource, "app=vllm", kubeconfig=config), quiet_s=quiet),
        Members(registry, "kubernetes"),
        read_pod if resource == "pods" else read_slice,
        rules=PortRules(),
        clock=clock,
        random=lambda: 0.0,
    )
    discovery.start()
    try:
        yield registry, discovery
    finally:
        await discovery.close()


def workers(registry: Registry) -> list[str]:
    return sorted(worker.id.removeprefix("http://").removesuffix(":8000") for worker in registry.workers())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.01)


async def test_lists_then_follows_every_change(server: ApiServer, tmp_path: Path) -> None:
    server.put(pod("a", "10.0.0.1"))
    server.put(pod("other", "10.0.9.9", labels={"app": "web"}))
    async with following(server, tmp_path) as (registry, discovery):
        await until(lambda: workers(registry) == ["10.0.0.1"])
        assert discovery.source.fault is None
        server.put(pod("b", "10.0.0.2", ready=False))
        server.put(pod("b", "10.0.0.2"))
        await until(lambda: workers(registry) == ["10.0.0.1", "10.0.0.2"])
        # it terminates: gone at once, long before it is deleted
        server.put(pod("a", "10.0.0.1", terminating=True))
        await until(lambda: workers(registry) == ["10.0.0.2"])
        server.delete("a")
        server.put(pod("b", "10.0.0.2", ready=False))
        await until(lambda: registry.workers()[0].reason.startswith("its pod is not ready"))
        server.delete("b")
        await until(lambda: workers(registry) == [])
    assert len(server.lists()) == 1
    assert server.lists()[0]["labelSelector"] == "app=vllm"
    assert {(w["allowWatchBookmarks"], w["resourceVersion"]) for w in server.watches()} == {("true", "102")}


async def test_a_stream_that_ends_goes_on_where_it_stopped(server: ApiServer, tmp_path: Path) -> None:
    server.put(pod("a", "10.0.0.1"))  # version 101
    async with following(server, tmp_path) as (registry, _):
        await until(lambda: len(server.watches()) == 1)
        server.put(pod("b", "10.0.0.2"))  # 102
        await until(lambda: len(workers(registry)) == 2)
        server.hang_up()
        await until(lambda: server.open_watches == 0)
        server.put(pod("c", "10.0.0.3"))  # 103, while nobody watches
        await until(lambda: len(workers(registry)) == 3)
    assert [w["resourceVersion"] for w in server.watches()[:2]] == ["101", "102"]
    assert len(server.lists()) == 1


async def test_a_bookmark_saves_the_next_watch_from_history_that_is_gone(
    server: ApiServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as (_, _discovery):
        await until(lambda: len(server.watches()) == 1)
        server.bookmark()  # 101: nothing of ours changed, the version moved on
        server.hang_up()
        await until(lambda: len(server.watches()) == 2)
    assert server.watches()[1]["resourceVersion"] == "101"


async def test_history_that_is_gone_means_a_new_list(server: ApiServer, tmp_path: Path) -> None:
    server.put(pod("a", "10.0.0.1"))
    server.put(pod("b", "10.0.0.2"))
    async with following(server, tmp_path) as (registry, discovery):
        await until(lambda: len(server.watches()) == 1)
        # b went while nobody could tell us
        server.objects.pop("b")
        server.compact()
        server.hang_up()
        await until(lambda: workers(registry) == ["10.0.0.1"])
        await until(lambda: discovery.source.fault is None)
        await until(lambda: figures(discovery.source)["watches"] == len(server.watches()) >= 2)
        seen = figures(discovery.source)
        assert (seen["lists"], seen["failures[expired]"], seen["failures[failed]"]) == (2, 1, 0)
        assert (seen["workers"], seen["up"]) == (1, 1)
    assert len(server.lists()) == 2


async def test_an_api_server_that_is_away_costs_nobody(
    free_port: Callable[[], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer(free_port())
    server.put(pod("a", "10.0.0.1"))
    with caplog.at_level(logging.INFO, "gateway.fleet.discovery"):
        async with following(server, tmp_path) as (registry, discovery):
            async with serving(server):
                await until(lambda: workers(registry) == ["10.0.0.1"])
            await until(lambda: "can't be reached" in (discovery.source.fault or ""))
            seen = figures(discovery.source)
            assert (seen["up"], seen["workers"]) == (0, 1)
            assert seen["failures[failed]"] >= 1
            assert workers(registry) == ["10.0.0.1"]
            server.delete("a")
            server.put(pod("b", "10.0.0.2"))
            async with serving(server):
                await until(lambda: workers(registry) == ["10.0.0.2"])
                about_lists = [r for r in caplog.records if "list of" in r.msg or "last list" in r.msg]
                said = [(r.levelname, r.getMessage()) for r in about_lists]
    # once, however long it lasted
    assert said == [
        ("WARNING", "workers can't be listed; the last list stands"),
        ("INFO", "the list of workers is current again"),
    ]


@pytest.mark.parametrize(
    ("status", "said"), [(403, "its Role must allow list and watch"), (500, "answers 500"), (429, "429")]
)
async def test_refusals_are_named_and_retried(
    server: ApiServer, tmp_path: Path, status: int, said: str
) -> None:
    server.put(pod("a", "10.0.0.1"))
    server.refuse = status
    async with following(server, tmp_path) as (registry, discovery):
        await until(lambda: said in (discovery.source.fault or ""))
        server.refuse = None
        await until(lambda: workers(registry) == ["10.0.0.1"])


async def test_a_wrong_token_is_named(server: ApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path, token="wrong") as (_, discovery):
        await until(lambda: "token is not accepted" in (discovery.source.fault or ""))


async def test_a_silent_connection_is_taken_for_dead(server: ApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path, quiet=0.2) as (_, _discovery):
        await until(lambda: len(server.watches()) >= 3)
    assert len(server.lists()) == 1


async def test_a_server_that_takes_watches_and_says_nothing_is_heard(
    server: ApiServer, tmp_path: Path
) -> None:
    now = [0.0]
    async with following(server, tmp_path, quiet=0.2, clock=lambda: now[0]) as (_, discovery):
        await until(lambda: len(server.watches()) >= 2)
        now[0] = 480.0
        before = len(server.watches())
        await until(lambda: len(server.watches()) >= before + 2)
        assert figures(discovery.source)["age_seconds"] == 0
    assert len(server.lists()) == 1


async def test_why_nobody_is_listed_is_said(server: ApiServer, tmp_path: Path) -> None:
    server.put(pod("other", "10.0.9.9", labels={"app": "web"}))
    async with following(server, tmp_path) as (registry, discovery):
        await until(lambda: discovery.source.fault is None)
        assert discovery.source.reason == "Kubernetes: nothing in the namespace matches the selector"
        server.put(pod("a", "10.0.0.1"))
        await until(lambda: workers(registry) == ["10.0.0.1"])
        assert discovery.source.reason is None


async def test_a_pod_larger_than_a_line_buffer(server: ApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path) as (registry, _):
        await until(lambda: len(server.watches()) == 1)
        server.put(pod("big", "10.0.0.1", annotations={"note": "x" * 300_000}))
        await until(lambda: workers(registry) == ["10.0.0.1"])


async def test_a_pod_that_cannot_be_used_does_not_take_others_along(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.put(pod("bad", "10.0.0.1", annotations={"prefix-gateway.io/weight": "heavy"}))
    server.put(pod("good", "10.0.0.2"))
    async with following(server, tmp_path) as (registry, discovery):
        await until(lambda: workers(registry) == ["10.0.0.2"])
        assert figures(discovery.source)["unusable"] == 1
        server.put(pod("bad", "10.0.0.1", annotations={"prefix-gateway.io/weight": "2"}))
        await until(lambda: workers(registry) == ["10.0.0.1", "10.0.0.2"])
        assert figures(discovery.source)["unusable"] == 0
    assert [r.__dict__["object"] for r in caplog.records if r.levelno == logging.WARNING] == ["chat/bad"]


async def test_endpoint_slices_are_followed_too(server: ApiServer, tmp_path: Path) -> None:
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "vllm-x", "namespace": "chat", "labels": {"app": "vllm"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": True}},
        ],
    }
    server.put(piece)
    async with following(server, tmp_path, resource="endpointslices") as (registry, _):
        await until(lambda: workers(registry) == ["10.0.0.1", "10.0.0.2"])
        piece = {**piece, "metadata": dict(piece["metadata"]), "endpoints": piece["endpoints"][:1]}  # type: ignore[call-overload, index]
        server.put(piece)
        await until(lambda: workers(registry) == ["10.0.0.1"])
    assert server.lists()[0]["path"] == "/apis/discovery.k8s.io/v1/namespaces/chat/endpointslices"
