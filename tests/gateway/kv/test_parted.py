"""A map in parts is one map, and its parts are alike."""

from __future__ import annotations

from random import Random

import pytest

from gateway.kv.parted import PARTS, PartedKeys, PartedMap


def test_it_is_a_map() -> None:
    parted: PartedMap[int | bytes, str] = PartedMap()
    parted[5] = "five"
    parted[b"\x00" * 32] = "digest"
    parted[-7] = "SGLang's are signed"
    assert (len(parted), 5 in parted, 6 in parted) == (3, True, False)
    assert (parted[5], parted.get(6), parted.get(-7)) == ("five", None, "SGLang's are signed")
    assert dict(parted.items()) == {5: "five", b"\x00" * 32: "digest", -7: "SGLang's are signed"}
    del parted[5]
    with pytest.raises(KeyError):
        parted[5]
    assert {parted.popitem(), parted.popitem()} == {(b"\x00" * 32, "digest"), (-7, "SGLang's are signed")}
    with pytest.raises(KeyError):
        parted.popitem()


def test_block_keys_go_to_all_parts_alike() -> None:
    random = Random(1)
    parted: PartedKeys[int] = PartedKeys()
    keys = [random.getrandbits(64) for _ in range(1000 * PARTS)]
    for number, key in enumerate(keys):
        parted[key] = number
    assert all(900 < len(part) < 1100 for part in parted.parts)
    assert [parted[key] for key in keys] == list(range(len(keys)))
    parted.clear()
    assert (len(parted), list(parted)) == (0, [])
