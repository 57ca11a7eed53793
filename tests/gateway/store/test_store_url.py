"""URLs of every kind, and what is said about those that can't be."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigError
from gateway.store.keys import Keys
from gateway.store.url import StoreKind, StoreUrl, Tls, parse_store_url
from gateway.types import WorkerId


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://localhost", StoreUrl(StoreKind.STANDALONE, (("localhost", 6379),))),
        (
            "redis://gw:p%40ss@10.0.0.1:7000/3",
            StoreUrl(StoreKind.STANDALONE, (("10.0.0.1", 7000),), "gw", "p@ss", 3),
        ),
        ("redis://:pw@h", StoreUrl(StoreKind.STANDALONE, (("h", 6379),), None, "pw")),
        (
            "rediss://h:1/0?ca=/ca.pem&cert=/c.pem&key=/k.pem&verify=no",
            StoreUrl(StoreKind.STANDALONE, (("h", 1),), tls=Tls("/ca.pem", "/c.pem", "/k.pem", False)),
        ),
        (
            "redis+sentinel://u:p@a,b:26380/mymaster/2?sentinel_password=sp",
            StoreUrl(
                StoreKind.SENTINEL, (("a", 26379), ("b", 26380)), "u", "p", 2, "mymaster",
                sentinel_password="sp",
            ),
        ),
        (
            "rediss+cluster://[::1]:7000,b:7001",
            StoreUrl(StoreKind.CLUSTER, (("::1", 7000), ("b", 7001)), tls=Tls()),
        ),
    ],
)  # fmt: skip
def test_urls(text: str, expected: StoreUrl) -> None:
    assert parse_store_url(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://h", "'http'"),
        ("localhost:6379", "'localhost'"),
        ("redis+ring://h", "sentinel or \\+cluster"),
        ("redis://", "host"),
        ("redis://h:notaport", "notaport"),
        ("redis://h/seven", "'seven'"),
        ("redis+sentinel://h:26379", "master's name"),
        ("redis+cluster://h:7000/1", "no numbered databases"),
        ("redis://h?ca=/x", "'ca'"),
        ("rediss://h?verify=perhaps", "yes or no"),
    ],
)
def test_what_can_not_be(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_store_url(text)


def test_a_password_beside_the_url_is_taken_as_it_is() -> None:
    url = parse_store_url("redis+cluster://u:inside@a", "a/b+c%41@?#")
    assert (url.username, url.password) == ("u", "a/b+c%41@?#")
    assert parse_store_url("redis://:inside@a", None).password == "inside"


def test_a_url_says_where_but_never_the_password() -> None:
    url = parse_store_url("redis+sentinel://u:secret@a:1,b:2/m?sentinel_password=secret")
    assert str(url) == "redis+sentinel://a:1,b:2/m"
    assert "secret" not in repr(url)


def test_all_of_a_worker_shares_one_hash_tag_and_the_prefix_comes_first() -> None:
    keys, worker = Keys("fleet{1}"), WorkerId("http://h:8000#dp1")
    names = [
        of(worker)
        for of in (
            keys.meta, keys.held, keys.names, keys.aside, keys.changes, keys.lease, keys.registration,
        )
    ]  # fmt: skip
    assert len(set(names)) == 7
    assert all(name.startswith("fleet(1):{http://h:8000#dp1}:") for name in names)
