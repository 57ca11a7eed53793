"""One connection object on every kind of server there is, and what each failure is called."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from gateway.errors import ConfigError, StoreError
from gateway.steady import SURE_S
from gateway.store.cluster import RELEARN_S
from gateway.store.connection import Store
from gateway.store.eviction import EvictionWatch
from gateway.store.scripts import Script
from gateway.store.url import parse_store_url
from tests.servers import Cluster, SentinelGroup, Server, cluster, sentinel_group, server_binaries, standalone

ADD = Script("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with sentinel_group(tmp_path_factory.mktemp("sentinel")) as running:
        yield running


async def works(store: Store) -> None:
    """A write, a script (sent, then by digest), a scan, a stream: what replication needs of a server."""
    key = store.keys.held("w")  # type: ignore[arg-type]
    stream = store.keys.changes("w")  # type: ignore[arg-type]
    await store.command("DEL", key, stream)
    assert await store.command("HSET", key, b"\x00\xff", b"\x01") == 1
    assert await store.command("HSCAN", key, 0, "COUNT", 10) == (0, {b"\x00\xff": b"\x01"})
    counter = store.keys.meta("w")  # type: ignore[arg-type]
    await store.command("DEL", counter)
    assert await store.script(ADD, [counter], [2]) == 2
    assert await store.script(ADD, [counter], [3]) == 5
    entry = await store.command("XADD", stream, "*", "p", b"\xfe")
    answer = await store.command("XREAD", "COUNT", 1, "BLOCK", 10, "STREAMS", stream, "0")
    assert answer == [[stream.encode(), [(entry, {b"p": b"\xfe"})]]]
    assert await store.command("XREAD", "COUNT", 1, "BLOCK", 10, "STREAMS", stream, entry) in (None, [])
    await store.check()
    assert store.status.up


@pytest.mark.anyio
@pytest.mark.parametrize("binary", server_binaries())
async def test_a_single_server(binary: str, tmp_path: Path) -> None:
    with standalone(tmp_path, binary=binary) as server:
        store = Store(parse_store_url(server.url))
        await works(store)
        await store.close()


@pytest.mark.anyio
async def test_sentinel_finds_the_master(group: SentinelGroup) -> None:
    store = Store(parse_store_url(group.url))
    await works(store)
    await store.close()


@pytest.mark.anyio
async def test_a_cluster_of_three_masters(masters: Cluster) -> None:
    store = Store(parse_store_url(masters.url), timeout=5)
    await works(store)
    await store.close()


@pytest.mark.anyio
async def test_databases_are_apart(server: Server) -> None:
    one, other = (Store(parse_store_url(server.url[:-1] + number)) for number in "01")
    await one.command("SET", "here", 1)
    assert await other.command("GET", "here") is None
    await one.close()
    await other.close()


@pytest.mark.anyio
async def test_an_acl_user_and_a_wrong_password(server: Server) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "gw", "on", ">s3cret/", "~pgw*", "&pgw*", "+@all")
    at = f"127.0.0.1:{server.port}"
    right = Store(parse_store_url(f"redis://gw:s3cret%2F@{at}"))
    assert await right.command("SET", "pgw:x", 1) is True
    with pytest.raises(StoreError) as error:
        await right.command("SET", "other", 1)
    assert error.value.kind == "forbidden"
    await right.check()
    elsewhere = Store(parse_store_url(f"redis://gw:s3cret%2F@{at}"), prefix="other")
    with pytest.raises(StoreError) as error:
        await elsewhere.check()
    assert error.value.kind == "forbidden"
    await elsewhere.close()
    wrong = Store(parse_store_url(f"redis://gw:guess@{at}"))
    with pytest.raises(StoreError) as error:
        await wrong.command("GET", "pgw:x")
    assert error.value.kind == "auth"
    assert "guess" not in error.value.message
    assert not wrong.status.up
    await right.close()
    await wrong.close()


@pytest.mark.anyio
async def test_a_password_that_is_missing(tmp_path: Path) -> None:
    with standalone(tmp_path, password="pw") as server:
        store = Store(parse_store_url(f"redis://127.0.0.1:{server.port}"))
        with pytest.raises(StoreError) as error:
            await store.command("GET", "x")
        assert error.value.kind == "auth"
        await store.close()


@pytest.mark.anyio
async def test_nobody_there(free_port: object) -> None:
    store = Store(parse_store_url(f"redis://127.0.0.1:{free_port()}"))  # type: ignore[operator]
    with pytest.raises(StoreError) as error:
        await store.command("PING")
    assert error.value.kind == "unavailable"
    assert store.status.failures == 1
    await store.close()


@pytest.mark.anyio
async def test_a_server_that_hangs_costs_the_deadline_and_comes_back(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url), timeout=0.2)
        await store.command("SET", "x", 1)
        server.pause()
        with pytest.raises(StoreError) as error:
            await store.command("GET", "x")
        assert error.value.kind == "timeout"
        assert not store.status.up
        server.resume()
        assert await store.command("GET", "x", timeout=10) == b"1"
        assert store.status.up
        await store.close()


@pytest.mark.anyio
async def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        assert await store.script(ADD, ["x"], [1]) == 1
        server.kill()
        with pytest.raises(StoreError):
            await store.command("GET", "x")
        server.start()
        assert await store.script(ADD, ["x"], [1]) == 1, "it has forgotten data and script"
        await store.close()


@pytest.mark.anyio
async def test_out_of_memory_and_read_only_have_names(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        with server.client() as admin:
            admin.config_set("maxmemory", "1")
            with pytest.raises(StoreError) as error:
                await store.command("SET", "x", 1)
            assert error.value.kind == "out_of_memory"
            admin.config_set("maxmemory", "0")
            admin.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(StoreError) as error:
                await store.command("SET", "x", 1)
            assert error.value.kind == "readonly"
        await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("sick", ["readonly", "out of memory"])
async def test_a_redis_that_takes_no_writes_is_down_until_it_does(
    tmp_path: Path, sick: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    script = Script("write", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
    with standalone(tmp_path) as server, server.client() as admin, caplog.at_level("INFO"):
        store = Store(parse_store_url(server.url), clock=lambda: now)
        await store.command("SET", "x", 1)
        if sick == "readonly":
            admin.execute_command("REPLICAOF", "127.0.0.1", "1")
            admin.config_set("replica-serve-stale-data", "yes")
        else:
            admin.config_set("maxmemory", "1")
        for write in (store.script(script, ["n"], [1]), store.command("SET", "x", 2), store.check()):
            with pytest.raises(StoreError):
                await write
            assert not store.status.up
            # reads go on; they say nothing of writes, however long they do
            now += 20.0
            assert await store.command("GET", "x") == b"1"
            await store.command("PING")
            await store.again()
            assert not store.status.up
            assert store.status.reason
        if sick == "readonly":
            admin.execute_command("REPLICAOF", "NO", "ONE")
        else:
            admin.config_set("maxmemory", "0")
        assert await store.command("GET", "x") == b"1"
        assert not store.status.up
        assert await store.script(script, ["n"], [1]) == 1
        assert store.status.up
        assert caplog.messages[-1] != "Redis answers"
        now += SURE_S
        await store.command("PING")
        await store.close()
    said = [(r.message.split(":")[0], getattr(r, "degraded_s", None)) for r in caplog.records]
    assert said == [
        ("Redis answers", None),
        *[("Redis is degraded", None)] * 3,
        ("Redis answers", 60.0),
    ]


@pytest.mark.anyio
async def test_a_cluster_is_up_when_the_lost_master_answers_again(tmp_path: Path) -> None:
    now = 100.0
    with cluster(tmp_path) as masters:
        store = Store(parse_store_url(masters.url), timeout=5, clock=lambda: now)
        keys = [f"{{w{number}}}:x" for number in range(30)]
        for key in keys:
            await store.command("SET", key, 1)
        assert store.status.up
        masters.masters[0].kill()
        lost, left = [], []
        for key in keys:
            try:
                await store.command("SET", key, 2)
                left.append(key)
            except StoreError:
                lost.append(key)
            assert store.status.up == (not lost), "others' answers say nothing of the lost one"
        assert lost
        assert left
        now += 3.9  # 2 s for a command of 5 s, 2 s of quiet
        await store.command("GET", left[0])
        assert not store.status.up
        masters.masters[0].start()
        async with asyncio.timeout(30):
            while not store.status.up:
                for key in keys:  # the clock stands: every one that failed must answer
                    with contextlib.suppress(StoreError):
                        await store.command("GET", key)
                await asyncio.sleep(0.05)
        await store.close()


@pytest.mark.anyio
async def test_a_server_that_evicts_is_refused(tmp_path: Path) -> None:
    with standalone(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = Store(parse_store_url(server.url))
        with pytest.raises(ConfigError, match="noeviction"):
            await store.check()
        with server.client() as admin:
            admin.config_set("maxmemory", "0")
        await store.check()  # without a limit it never evicts
        await store.close()


@pytest.mark.anyio
async def test_a_failover_is_followed(group: SentinelGroup) -> None:
    store = Store(parse_store_url(group.url))
    await store.command("SET", "before", 1)
    before = group.master_port()
    group.master.kill()

    async def written() -> bool:
        try:
            return bool(await store.command("SET", "after", 1))
        except StoreError:
            return False

    async with asyncio.timeout(60):
        while not await written():  # noqa: ASYNC110 (a failover tells nobody)
            await asyncio.sleep(0.1)
    assert group.master_port() != before
    await store.close()


@pytest.mark.anyio
async def test_a_moved_slot_is_followed(masters: Cluster) -> None:
    store = Store(parse_store_url(masters.url), timeout=5)
    key = store.keys.meta("mover")  # type: ignore[arg-type]
    assert await store.script(ADD, [key], [1]) == 1
    source = masters.owner(key)
    masters.move(key, next(m for m in masters.masters if m is not source))
    assert masters.owner(key) is not source
    assert await store.script(ADD, [key], [1]) == 2
    await store.close()


@pytest.mark.anyio
async def test_a_policy_that_changes_while_it_runs_is_noticed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with standalone(tmp_path, "--maxmemory", "100mb") as server, server.client() as admin:
        store = Store(parse_store_url(server.url), timeout=10)
        watch = EvictionWatch(store, random=lambda: 0.5)
        await watch.look()
        assert store.evicts == ""
        admin.config_set("maxmemory-policy", "allkeys-lfu")
        await watch.look()
        await watch.look()
        assert store.evicts == "allkeys-lfu"
        admin.config_set("maxmemory-policy", "noeviction")
        await watch.look()
        assert store.evicts == ""
        server.kill()
        await watch.look()
        told = [(r.levelname, "evicts" in r.message) for r in caplog.records if r.name.endswith("eviction")]
        assert told == [("ERROR", True), ("INFO", False)]
        await store.close()


def test_a_connection_that_broke_under_uvloop_is_redis_away(masters: Cluster) -> None:
    """Its transport raises a RuntimeError there, which redis-py passes on; nobody's task may end by it."""

    async def run() -> None:
        store = Store(parse_store_url(masters.url), timeout=10)
        await store.command("SET", "k", "1")
        for node in store._client.get_nodes():  # type: ignore[union-attr]
            for connection in list(node._free):
                connection._writer.transport.abort()
                # it is closed, and nobody has looked at it since
                assert await connection._reader.read() == b""
        with pytest.raises(StoreError) as caught:
            await store.command("GET", "k")
        assert caught.value.kind == "unavailable"
        assert not store.status.up
        assert await store.command("GET", "k") == b"1", "the next one has a connection of its own"
        await store.close()

    uvloop.run(run())


@pytest.mark.anyio
async def test_of_all_who_wait_for_a_redis_that_is_away_one_asks(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        await store.command("SET", "k", "1")
        server.kill()
        with pytest.raises(StoreError):
            await store.command("GET", "k")
        waiting = [asyncio.create_task(store.again()) for _ in range(200)]
        while store.status.failures < 4:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        server.start()
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
        assert store.status.up
        assert store.status.failures < 200, "each of them would have failed once"
        await store.close()


@pytest.mark.anyio
async def test_who_asks_for_all_may_leave(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        store = Store(parse_store_url(server.url))
        server.kill()
        with pytest.raises(StoreError):
            await store.command("GET", "k")
        first, second = (asyncio.create_task(store.again()) for _ in range(2))
        while store.status.failures < 2:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)
        first.cancel()
        server.start()
        async with asyncio.timeout(30):
            await second
        assert store.status.up
        await store.close()


@pytest.mark.anyio
async def test_a_lost_master_does_not_have_the_layout_learned_with_every_command(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        store = Store(parse_store_url(nodes.url))
        await store.command("SET", "k", "1")
        lost = nodes.owner("k")
        others = [master for master in nodes.masters if master is not lost]
        lost.kill()
        began, before = time.monotonic(), [_calls(other) for other in others]
        for _ in range(50):
            with pytest.raises(StoreError):
                await store.command("GET", "k")
        after = [_calls(other) for other in others]
        slots, commands = (
            sum(calls[i] for calls in after) - sum(calls[i] for calls in before) for i in (0, 1)
        )
        assert commands == 0, "the list of commands is learned once"
        assert slots <= 2 + (time.monotonic() - began) / RELEARN_S
        lost.start()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(StoreError):
                    if await store.command("GET", "k") is None:
                        break
                await asyncio.sleep(0.05)
        await store.close()


def _calls(server: Server) -> tuple[int, int]:
    """How often a node was asked for the layout, and for all commands."""
    with server.client() as client:
        stats = client.info("commandstats")
    return tuple(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("cluster|slots", "command"))


@pytest.mark.anyio
async def test_a_cluster_in_doubt_is_closed_too(masters: Cluster) -> None:
    store = Store(parse_store_url(masters.url), timeout=10)
    await store.command("SET", "k", "1")
    client = store._client
    connections = [c for node in client.get_nodes() for c in node._connections]  # type: ignore[union-attr]
    assert any(connection.is_connected for connection in connections)
    client._initialize = True  # type: ignore[union-attr]  # what a command leaves behind that met a lost node
    await store.close()
    assert not any(connection.is_connected for connection in connections)


@pytest.mark.anyio
async def test_a_cluster_without_a_node_to_ask_is_away_until_it_is_learned_anew(masters: Cluster) -> None:
    """As a client is left that was told of no master while all of them were gone."""
    store = Store(parse_store_url(masters.url), timeout=5)
    await store.check()
    store._client.nodes_manager.default_node = None
    with pytest.raises(StoreError, match="no node of the cluster is known") as caught:
        await store.check()
    assert caught.value.kind == "unavailable"
    async with asyncio.timeout(30):
        while True:
            try:
                await store.check()
                break
            except StoreError:
                await asyncio.sleep(RELEARN_S / 10)
    await store.close()
