"""A URL that names another kind of server than the one that is there: no outage, so it ends the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigError, StoreError
from gateway.shared_index import check_store
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from tests.servers import cluster, sentinel_group, standalone

pytestmark = pytest.mark.anyio


async def ends(url: str, reason: str) -> None:
    """Waiting goes on, and knows why it must."""
    store = Store(parse_store_url(url), timeout=10)
    with pytest.raises(ConfigError, match=f"is not what --redis-url says: .*{reason}.*--redis-wait"):
        await check_store(store, wait=False)
    await check_store(store, wait=True)
    assert not store.status.up
    assert reason in store.status.reason
    await store.close()


async def test_one_server_that_has_no_such_database_or_is_no_cluster_and_no_sentinel(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        one = f"127.0.0.1:{server.port}"
        await ends(f"redis://{one}/99", "DB index is out of range")
        await ends(f"redis+cluster://{one}", "Cluster mode is not enabled")
        await ends(f"redis+sentinel://{one}/main", "unknown command 'SENTINEL'")


async def test_a_sentinel_that_is_taken_for_a_server(tmp_path: Path) -> None:
    with sentinel_group(tmp_path, sentinels=1) as group:
        await ends(f"redis://127.0.0.1:{group.sentinels[0].port}", "unknown command 'EVALSHA'")


async def test_a_node_of_a_cluster_that_is_taken_for_a_server(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        owner = nodes.owner("pgw:check")
        another = next(master for master in nodes.masters if master is not owner)
        await ends(f"redis://127.0.0.1:{another.port}", "it is a node of a cluster")


async def test_what_is_refused_is_the_reason_until_it_was_up_once(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url), timeout=10)
        with pytest.raises(StoreError) as caught:
            await store.command("LPUSH", "x")
        assert caught.value.kind == "refused"
        assert "wrong number of arguments" in store.status.reason
        await store.command("SET", "x", 1)
        assert (store.status.up, store.status.reason) == (True, "")
        await store.close()
