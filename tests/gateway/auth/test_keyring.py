"""Key files, and from a request's headers to the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.auth.authenticator import Authenticator, presented
from gateway.auth.hashing import scrypt_of, sha256_of
from gateway.auth.keyring import Keyring
from gateway.auth.keys import ApiKey, Limits, key_from
from gateway.auth.source import load_keyring, read_key_file
from gateway.errors import ConfigError, Unauthorized

pytestmark = pytest.mark.anyio

FULL = f"""
keys:
  - id: team-a
    hash: {sha256_of("secret-a")}
    models: [tiny, "lora-*"]
    priority: 2
    weight: 3
    requests_per_minute: 60
    tokens_per_minute: 1000
    max_parallel: 4
    cache_salt: acme
    allow: [kv_transfer_params]
    expires: 2027-01-31
  - id: team-b
    hashes: [{sha256_of("old-b")}, {sha256_of("new-b")}]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    return path


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + secret.encode())]


def test_a_key_file_in_full(tmp_path: Path) -> None:
    a, b = read_key_file(write(tmp_path, FULL))
    assert a == ApiKey(
        id="team-a",
        hashes=(sha256_of("secret-a"),),
        models=("tiny", "lora-*"),
        priority=2,
        weight=3.0,
        limits=Limits(60, 1000, 4),
        cache_salt="acme",
        allow=("kv_transfer_params",),
        expires=1801353600.0,  # date -u -d 2027-01-31 +%s
    )
    assert (b.models, b.restricted, b.limits.any, b.cache_salt) == (("*",), False, False, "")
    assert len(b.hashes) == 2


def test_models_are_names_and_patterns() -> None:
    key = ApiKey("a", models=("tiny", "lora-*"))
    assert key.restricted
    assert [m for m in ("tiny", "tiny2", "lora-1", "a-lora-1", "TINY") if key.serves(m)] == ["tiny", "lora-1"]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"id": "a b", "hash": sha256_of("x")}, "id must be"),
        ({"id": "a"}, "hash is missing"),
        ({"id": "a", "hash": "pgw_hunter2"}, "not a hash"),
        ({"id": "a", "hash": sha256_of("x"), "rpm": 3}, "unknown field 'rpm'"),
        ({"id": "a", "hash": sha256_of("x"), "requests_per_minute": 0}, "requests_per_minute"),
        ({"id": "a", "hash": sha256_of("x"), "max_parallel": True}, "max_parallel"),
        ({"id": "a", "hash": sha256_of("x"), "weight": 0}, "weight"),
        ({"id": "a", "hash": sha256_of("x"), "weight": 1e308}, "weight: a number from 0.001 to 1,000"),
        ({"id": "a", "hash": sha256_of("x"), "weight": 5e-324}, "weight: a number from 0.001 to 1,000"),
        ({"id": "a", "hash": sha256_of("x"), "priority": -7}, "priority"),
        ({"id": "a", "hash": sha256_of("x"), "cache_salt": "a|b"}, "cache_salt"),
        ({"id": "a", "hash": sha256_of("x"), "expires": "soon"}, "expires"),
        ({"id": "a", "hash": sha256_of("x"), "disabled": "no"}, "disabled"),
        ({"id": "a", "hash": sha256_of("x"), "models": [1]}, "models"),
    ],
)
def test_a_faulty_entry_is_named_and_no_secret_repeated(entry: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        key_from(entry)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "entry", ["pgw_hunter2", "pgw_hunter2=", "hunter2==", f"pgw_hunter2={sha256_of('x')}"]
)
def test_a_key_in_plain_in_place_of_an_entry_is_not_repeated(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"^api_keys, entry 2: ") as caught:
        load_keyring(None, (f"a={sha256_of('a')}", entry))
    assert "hunter2" not in caught.value.message


def test_a_faulty_entry_of_a_file_is_counted_and_an_id_that_may_be_a_key_not_repeated(tmp_path: Path) -> None:
    text = f"- {{id: a, hash: '{sha256_of('a')}'}}\n- {{id: 'hunter2 =', hash: '{sha256_of('b')}'}}"
    with pytest.raises(ConfigError, match="entry 2: id must be 1–64 letters") as caught:
        read_key_file(write(tmp_path, text))
    assert "hunter2" not in caught.value.message


def test_a_broken_file_does_not_quote_its_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not YAML") as caught:
        read_key_file(write(tmp_path, "keys: [pgw_hunter2, {"))
    assert "hunter2" not in caught.value.message
    with pytest.raises(ConfigError, match="No such file"):
        read_key_file(tmp_path / "absent")
    with pytest.raises(ConfigError, match="a list of keys is wanted"):
        read_key_file(write(tmp_path, "keys: 3"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys: []\nkeys: []", "line 2: a name stands here again, after line 1"),
        ("- id: a\n  hunter2: 1\n  hunter2: 2", "line 3: a name stands here again, after line 2"),
        ("- id: a\n  expires: 2026-13-01", "line 2: what stands there is not a date"),
    ],
)
def test_what_a_parser_would_swallow_or_choke_on_is_said_by_its_line(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_key_file(write(tmp_path, text))
    assert caught.value.message.endswith(says)


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (("a", "x", None), ("a", "y", None), "same id"),
        (("a", "x", None), ("b", "x", None), "same hash"),
        (("a", "x", "s"), ("b", "y", "s"), "same cache_salt"),
    ],
)
def test_two_keys_share_nothing(first: tuple[str, ...], second: tuple[str, ...], fault: str) -> None:
    keys = [
        key_from({"id": i, "hash": sha256_of(secret), "cache_salt": salt})
        for i, secret, salt in (first, second)
    ]
    with pytest.raises(ConfigError, match=fault):
        Keyring(keys)


def test_automatic_salts_differ_by_key_and_stay() -> None:
    one = key_from({"id": "a", "hash": sha256_of("x"), "cache_salt": "auto"})
    same = key_from({"id": "renamed", "hash": sha256_of("x"), "cache_salt": "auto"})
    other = key_from({"id": "a", "hash": sha256_of("y"), "cache_salt": "auto"})
    assert one.cache_salt == same.cache_salt != other.cache_salt
    assert len(one.cache_salt) == 32


def test_entries_of_the_settings_join_those_of_the_file(tmp_path: Path) -> None:
    ring = load_keyring(write(tmp_path, FULL), [f"env={sha256_of('e')}"])
    assert [key.id for key in ring.keys] == ["env", "team-a", "team-b"]
    assert "sha256" not in repr(ring)
    with pytest.raises(ConfigError, match="id=HASH"):
        load_keyring(None, ["justakey"])


async def test_each_hash_of_a_key_being_rotated_opens(tmp_path: Path) -> None:
    ring = load_keyring(write(tmp_path, FULL))
    assert [getattr(await ring.find(s), "id", None) for s in ("secret-a", "old-b", "new-b", "other", "")] == [
        "team-a", "team-b", "team-b", None, None,
    ]  # fmt: skip


async def test_slow_hashes_are_tried_once_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring([ApiKey("slow", (scrypt_of("word", bytes(16)),)), ApiKey("fast", (sha256_of("f"),))])
    tried: list[str] = []
    honest = ring._try_slow
    monkeypatch.setattr(ring, "_try_slow", lambda secret: (tried.append(secret), honest(secret))[1])
    for _ in range(3):
        found = await ring.find("word")
        assert found is not None
        assert found.id == "slow"
        assert await ring.find("wrong") is None
        assert (await ring.find("f")) is not None
    assert tried == ["word", "wrong"]


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ([(b"authorization", b"Bearer k")], "k"),
        ([(b"authorization", b"bearer  k ")], "k"),
        ([(b"x-api-key", b"k")], "k"),
        ([(b"api-key", b"k")], "k"),
        ([(b"authorization", b"Bearer k"), (b"x-api-key", b"k")], "k"),
        ([(b"authorization", b"Basic azpr")], None),
        ([(b"accept", b"k")], None),
    ],
)
def test_where_a_key_may_stand(headers: list[tuple[bytes, bytes]], secret: str | None) -> None:
    assert presented(headers) == secret


def test_two_different_keys_in_one_request_are_refused() -> None:
    with pytest.raises(Unauthorized, match="more than one"):
        presented([(b"authorization", b"Bearer k"), (b"x-api-key", b"j")])


async def test_who_gets_in_and_that_all_others_hear_the_same() -> None:
    ring = Keyring(
        [
            ApiKey("ok", (sha256_of("good"),)),
            ApiKey("off", (sha256_of("off"),), disabled=True),
            ApiKey("old", (sha256_of("old"),), expires=1000.0),
        ]
    )
    now = [999.0]
    authenticate = Authenticator(ring, lambda: now[0])
    assert (await authenticate(bearer("good"))).id == "ok"
    assert (await authenticate(bearer("old"))).id == "old"
    now[0] = 1000.0
    said = set()
    for secret in ("wrong", "off", "old", "x" * 5000, "gäb"):
        with pytest.raises(Unauthorized) as caught:
            await authenticate(bearer(secret))
        said.add((caught.value.status, caught.value.code, caught.value.message))
    assert said == {(401, "invalid_api_key", "this API key is not valid")}
    with pytest.raises(Unauthorized, match="is needed"):
        await authenticate([])


async def test_a_new_keyring_counts_from_the_next_request() -> None:
    authenticate = Authenticator(Keyring([ApiKey("a", (sha256_of("one"),))]), lambda: 0.0)
    assert (await authenticate(bearer("one"))).id == "a"
    authenticate.keyring = Keyring([ApiKey("b", (sha256_of("two"),))])
    with pytest.raises(Unauthorized):
        await authenticate(bearer("one"))
    assert (await authenticate(bearer("two"))).id == "b"
