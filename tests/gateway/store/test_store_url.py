"""URLs of every kind, and what is said about those that can't be."""

from __future__ import annotations

import re

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
        ("http://h", "begins with redis://"),
        ("localhost:6379", "begins with redis://"),
        ("redis+ring://h", "sentinel or \\+cluster"),
        ("redis://", "host"),
        ("redis+cluster://h,h:notaport", "its server 2 is no host"),
        ("redis://h/seven", "the number of a database"),
        ("redis://h/" + "9" * 5000, "the number of a database"),
        ("redis+sentinel://h:26379", "master's name"),
        ("redis+cluster://h:7000/1", "no numbered databases"),
        ("redis://h?ca=/x", "'ca'"),
        ("rediss://h?verify=perhaps", "yes or no"),
    ],
)
def test_what_can_not_be(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_store_url(text)


@pytest.mark.parametrize("between", ["/", "?", "#", "[", "/a@", "?a=", "?a=b@", "#1", "@?x@", "/0?"])
def test_what_was_not_encoded_is_said_and_nothing_of_it(between: str) -> None:
    for password in (f"hunter2{between}secret", f"12{between}secret", f"hunter2:se{between}cret"):
        for scheme in ("redis", "rediss", "redis+sentinel", "redis+cluster"):
            with pytest.raises(ConfigError, match="must be percent-encoded") as refused:
                parse_store_url(f"{scheme}://gw:{password}@10.0.0.1:6379/0")
            assert not {"hunter2", "12", "secret", "cret", "gw"} & set(_words(refused.value.message))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize(
    "text", ["redis://:hunter2", "hunter2:secret@h", "redis://gw:hunter2", "redis://h/hunter2"]
)
def test_a_url_without_one_of_its_parts_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_store_url(text)
    assert "hunter2" not in refused.value.message


def test_an_at_sign_in_a_password_is_taken_where_nothing_else_is_amiss() -> None:
    assert parse_store_url("redis://gw:p@ss@h/1") == parse_store_url("redis://gw:p%40ss@h/1")


def test_sentinels_own_password_may_have_an_at_sign() -> None:
    url = parse_store_url("redis+sentinel://u:p@a/m?sentinel_password=s@p")
    assert (url.password, url.sentinel_password) == ("p", "s@p")


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
