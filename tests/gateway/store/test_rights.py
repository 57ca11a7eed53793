"""What an ACL user must be allowed: the documented rights are enough, and whatever is missing is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import ConfigError, StoreError
from gateway.shared_index import check_store
from gateway.store.connection import Store
from gateway.store.rights import RIGHTS
from gateway.store.url import parse_store_url
from tests.conftest import ROOT
from tests.redis_rights import documented, give, refused
from tests.servers import Server, cluster, sentinel_group, server_binaries, standalone

CALLED_OUTSIDE = {"EVAL", "EVALSHA", "INFO", "PING"}
"""By who tries the others, or what no user of a connection lacks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis")) as running:
        yield running


def test_every_command_that_is_used_is_tried() -> None:
    scripts = [path.read_text() for path in (ROOT / "gateway").rglob("*.lua") if path.stem != "rights"]
    modules = [path.read_text() for path in (ROOT / "gateway").rglob("*.py")]
    used = {name for text in scripts for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", text)}
    used |= {name for text in modules for name in re.findall(r"\.command\(\s*\"([A-Z]+)\"", text)}
    assert {"TIME", "XADD", "XREAD", "PUBLISH", "ZREMRANGEBYRANK"} <= used
    tried = set(re.findall(r"\{'([A-Z]+)'", RIGHTS.source))
    assert used - CALLED_OUTSIDE == tried


@pytest.mark.anyio
@pytest.mark.parametrize("binary", server_binaries())
async def test_the_documented_rights_are_enough_for_the_check(binary: str, tmp_path: Path) -> None:
    with standalone(tmp_path, binary=binary) as server:
        store = Store(parse_store_url(give(server, documented())))
        await store.check()
        assert store.status.up
        assert refused(server) == []
        with server.client() as admin:
            assert admin.keys() == [], "it leaves nothing behind"
        await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("-time", "+time"),
        ("-@pubsub", "+publish"),
        ("-subscribe", "+subscribe"),
        ("-xread", "+xread"),
        ("-zrange", "+zrange"),
        ("-hincrby -pttl", "+pttl +hincrby"),
        ("resetkeys ~other:*", "access a key"),
        ("resetchannels &other:*", "&pgw:*"),
        ("-@scripting", "evalsha"),
        ("-info", "info"),
    ],
)
async def test_a_right_that_is_missing_is_named(server: Server, rule: str, named: str) -> None:
    store = Store(parse_store_url(give(server, [*documented(), *rule.split()])))
    with pytest.raises(StoreError) as error:
        await store.check()
    assert error.value.kind == "forbidden"
    assert named in error.value.message
    assert "+get" not in error.value.message
    assert not store.status.up
    with pytest.raises(ConfigError, match=re.escape(named)) as stops:
        await check_store(store, wait=False)
    assert "keys and channels pgw:*" in stops.value.message
    await store.close()


@pytest.mark.anyio
async def test_it_is_not_up_until_its_user_has_the_right(server: Server) -> None:
    now = 100.0
    rights = documented()
    url = give(server, [*rights, "-time"])
    store = Store(parse_store_url(url), clock=lambda: now)
    with pytest.raises(StoreError, match=r"the user gw lacks the rights \+time"):
        await store.check()
    now += 1000
    assert await store.command("SET", "pgw:x", 1) is True
    assert not store.status.up, "that others succeed is no news of that one"
    assert "+time" in store.status.reason
    give(server, rights)
    await store.check()
    assert store.status.up
    await store.close()


@pytest.mark.anyio
async def test_a_script_s_command_that_is_refused_is_no_answer_like_others(server: Server) -> None:
    from gateway.auth.shared_limits import load_script

    store = Store(parse_store_url(give(server, [*documented(), "-time"])))
    with pytest.raises(StoreError) as error:
        await store.script(load_script("gateway.auth", "take"), store.keys.limits("k"), ["r", 0, 1, 0, 0, 60])
    assert error.value.kind == "forbidden"
    assert not store.status.up
    await store.close()


@pytest.mark.anyio
async def test_the_documented_rights_are_enough_in_a_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path) as masters:
        for master in masters.masters:
            give(master, documented())
        nodes = ",".join(f"127.0.0.1:{master.port}" for master in masters.masters)
        store = Store(parse_store_url(f"redis+cluster://gw:pw@{nodes}"), timeout=5)
        await store.check()
        assert [refused(master) for master in masters.masters] == [[], [], []]
        await store.close()


@pytest.mark.anyio
async def test_the_documented_rights_are_enough_behind_sentinels(tmp_path: Path) -> None:
    with sentinel_group(tmp_path) as group:
        give(group.master, documented())
        store = Store(parse_store_url(group.url.replace("://", "://gw:pw@")))
        await store.check()
        assert refused(group.master) == []
        await store.close()
