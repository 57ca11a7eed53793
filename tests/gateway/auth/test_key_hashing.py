"""Hashes of keys, against values computed elsewhere."""

from __future__ import annotations

import pytest

from gateway.auth.hashing import checked_hash, matches, new_secret, scrypt_of, sha256_of
from gateway.errors import ConfigError

# printf abc | sha256sum: the example of FIPS 180-4
ABC = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
# RFC 7914, section 12: scrypt("pleaseletmein", "SodiumChloride", 16384, 8, 1), its first 32 bytes; the salt
# there is 14 bytes, which `checked_hash` finds too short, so only `matches` can be held to it
PLEASE = (
    "scrypt:14:8:1:536f6469756d43686c6f72696465:"
    "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
)


def test_sha256_is_sha256() -> None:
    assert sha256_of("abc") == ABC
    assert matches("abc", ABC)
    assert not matches("abd", ABC)


def test_scrypt_is_scrypt() -> None:
    assert matches("pleaseletmein", PLEASE)
    assert not matches("pleaseletmeout", PLEASE)


def test_scrypt_round_trip() -> None:
    stored = scrypt_of("a word", bytes(range(16)))
    assert checked_hash(stored) == stored
    assert stored.startswith("scrypt:15:8:1:000102030405060708090a0b0c0d0e0f:")
    assert matches("a word", stored)
    assert not matches("a wore", stored)


def test_new_secrets_have_256_bits_and_a_prefix_that_scanners_know() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert first.startswith("pgw_")
    assert len(first) == 4 + 43  # 32 bytes in base64 without padding


@pytest.mark.parametrize(
    "text",
    [
        "pgw_secret-that-somebody-pasted",
        "sha256:abc",
        "md5:900150983cd24fb0d6963f7d28e17f72",
        ABC.upper(),
        "scrypt:30:8:1:" + "00" * 16 + ":" + "00" * 32,  # 1 TiB of memory
        "scrypt:15:8:1:0011:" + "00" * 32,  # hardly any salt
    ],
)
def test_what_is_no_hash_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_hash(text)
    assert text not in caught.value.message
