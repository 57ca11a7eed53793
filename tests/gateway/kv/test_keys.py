"""Block keys by their definition (docs/block-keys.md carries the same numbers)."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.kv.keys import block_keys, cacheable_blocks, pack_tokens, root_key
from gateway.types import BlockKey, CacheScope

ROOTS = {
    ("tiny-llama", "", ""): 0x0281DAD82F6A273A,
    ("tiny-llama", "sql-lora", ""): 0x19ED382A7A6F812D,
    ("tiny-llama", "", "tenant-a"): 0xCE45BAA89523D836,
    ("tiny-llama", "sql-lora", "tenant-a"): 0x4C6746182DEBA027,
    ("Qwen/Qwen2.5-7B-Instruct", "", ""): 0x5E65D4A96646BC83,
    ("modèle", "", "sel"): 0xA7C9D7E180326EBA,
}
"""Roots by (model, adapter, salt)."""

KEYS = [0xF12EB507C09368FE, 0xC8D089EA24CCABE6, 0x7594BED87AE68BA3]
"""The three blocks of tokens 0…47 below the first root above."""

KEY_WITH_MEDIA = 0x1CBFAE1FEC2B575C
"""The first of them, had it the extra bytes 1e 'img-1' 1f '3'."""


def test_the_hash_is_xxh3_with_64_bits_and_no_seed() -> None:
    """The reference implementation's own value for no input (xxHash 0.8, XXH3_64bits)."""
    assert xxh3_64_intdigest(b"") == 0x2D06800538D394C2


@pytest.mark.parametrize(("scope", "root"), ROOTS.items())
def test_golden_roots(scope: tuple[str, str, str], root: int) -> None:
    assert root_key(CacheScope(*scope)) == root


def test_golden_keys() -> None:
    root = root_key(CacheScope("tiny-llama"))
    assert block_keys(root, pack_tokens(range(48))) == KEYS
    assert block_keys(root, pack_tokens(range(48)), extras={0: b"\x1eimg-1\x1f3"})[0] == KEY_WITH_MEDIA


def test_a_root_is_the_hash_of_its_names() -> None:
    assert root_key(CacheScope("m", "a", "s")) == xxh3_64_intdigest(b"pgw1\x1fm\x1fa\x1fs")


def test_a_key_is_the_hash_of_the_parent_and_the_tokens() -> None:
    tokens = [1, 255, 65_535, 2**32 - 1, *range(12)]
    by_hand = struct.pack("<Q16I", 0x0123456789ABCDEF, *tokens)
    assert block_keys(BlockKey(0x0123456789ABCDEF), pack_tokens(tokens)) == [xxh3_64_intdigest(by_hand)]


def test_a_key_with_extras_has_them_at_the_end() -> None:
    by_hand = struct.pack("<Q16I", 7, *range(16)) + b"\x1epicture"
    [key] = block_keys(BlockKey(7), pack_tokens(range(16)), extras={0: b"\x1epicture"})
    assert key == xxh3_64_intdigest(by_hand)


def test_everything_that_changes_a_root_gives_another() -> None:
    scopes = [
        CacheScope("m"),
        CacheScope("n"),
        CacheScope("m", adapter="a"),
        CacheScope("m", salt="a"),
        CacheScope("m", adapter="a", salt="a"),
    ]
    assert len({root_key(scope) for scope in scopes}) == len(scopes)


@pytest.mark.parametrize("changed", [0, 15, 16, 40, 79])
def test_a_changed_token_changes_its_block_and_all_behind_it_and_none_before(changed: int) -> None:
    tokens = list(range(1000, 1080))
    before = block_keys(BlockKey(1), pack_tokens(tokens))
    tokens[changed] += 1
    after = block_keys(BlockKey(1), pack_tokens(tokens))
    first = changed // 16
    assert after[:first] == before[:first]
    assert all(a != b for a, b in zip(after[first:], before[first:], strict=True))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_full_blocks_only(tokens: int, blocks: int) -> None:
    assert len(block_keys(BlockKey(1), pack_tokens(range(tokens)))) == blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (16, 0), (17, 1), (96, 5), (97, 6), (100, 6)])
def test_the_last_token_is_always_computed(tokens: int, blocks: int) -> None:
    """So 96 tokens, all held, are served 80 from cache: measured on vLLM."""
    assert cacheable_blocks(tokens) == blocks


def test_max_blocks_stops_early() -> None:
    packed = pack_tokens(range(64))
    assert block_keys(BlockKey(1), packed, max_blocks=2) == block_keys(BlockKey(1), packed)[:2]
    assert block_keys(BlockKey(1), packed, max_blocks=9) == block_keys(BlockKey(1), packed)


def test_other_block_sizes() -> None:
    by_hand = struct.pack("<Q8I", 3, *range(8))
    assert block_keys(BlockKey(3), pack_tokens(range(9)), block_size=8) == [xxh3_64_intdigest(by_hand)]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=100), st.integers(0, 6))
def test_a_chain_can_be_continued_anywhere(tokens: list[int], cut: int) -> None:
    whole = block_keys(BlockKey(9), pack_tokens(tokens))
    cut = min(cut, len(whole))
    parent = whole[cut - 1] if cut else BlockKey(9)
    assert whole[:cut] + block_keys(parent, pack_tokens(tokens[cut * 16 :])) == whole


@given(st.lists(st.integers(0, 2**32 - 1), max_size=64))
def test_extras_that_are_empty_change_nothing(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert block_keys(BlockKey(9), packed, extras={99: b"x"}) == block_keys(BlockKey(9), packed)


def test_packing() -> None:
    assert pack_tokens([1, 2**32 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert pack_tokens(array("I", [1, 2])) == pack_tokens((1, 2))
    for wrong in (-1, 2**32):
        with pytest.raises(OverflowError):
            pack_tokens([wrong])


def test_the_docs_show_the_same_vectors() -> None:
    page = (Path(__file__).parents[3] / "docs" / "block-keys.md").read_text()
    for value in (*ROOTS.values(), *KEYS, KEY_WITH_MEDIA):
        assert f"`{value:016X}`" in page
