"""Encoding by segments equals encoding as a whole, for every kind of tokenizer that could make it differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from gateway.prompt.files import TokenizerFiles, set_edge_tokens
from gateway.prompt.quick import Library, quickest
from gateway.prompt.segments import SegmentedTokenizer

Variant = Callable[[Tokenizer], None]


def token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=flags.pop("normalized", False), **flags)


def plain(tokenizer: Tokenizer) -> None:
    pass


def blanks_taken(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(
        [
            token("<left>", lstrip=True),
            token("<right>", rstrip=True),
            token("<both>", lstrip=True, rstrip=True),
        ]
    )


def blanks_in_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(
        [token(" <lead>"), token("<trail> "), token("\n"), token("<right>", rstrip=True)]
    )


def overlapping(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(
        [token("<|im"), token("<|im_start|>user"), token("|>"), token("word", single_word=True)]
    )


def normalized_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_special_tokens([token("<norm>", normalized=True), token("<|im_end|>x")])
    tokenizer.add_tokens([AddedToken("wordy", normalized=True, single_word=True)])


def space_at_the_very_start(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="Ġ", prepend_scheme="first", split=False)


def space_before_every_piece(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def stripped_pieces(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
    )


VARIANTS: dict[str, tuple[str, Variant]] = {
    "vllm-tiny": ("vllm-tiny", plain),
    "smollm2": ("smollm2", plain),
    "mistral-v3": ("mistral-v3", plain),
    **{
        change.__name__: ("vllm-tiny", change)
        for change in (
            blanks_taken,
            blanks_in_tokens,
            overlapping,
            normalized_tokens,
            space_at_the_very_start,
            space_before_every_piece,
            stripped_pieces,
        )
    },
}

PIECES = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "<left>",
        "<right>",
        "<both>",
        " <lead>",
        "<trail> ",
        "<norm>",
        "<NORM>",
        "word",
        "wordy",
        "user",
        "<|im",
        "|>",
        "<",
        " ",
        "  ",
        "\n",
        "\t",
        "a",
        "Hello world",
        "é",
        "e\u0301",
        "ﬁ",
        "你好",
        "🏳️‍🌈",
        "12345",
        "'s",
        "\u2028",
        "\u00a0",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=14).map("".join)


@pytest.fixture(scope="module")
def variants(tokenizers: dict[str, TokenizerFiles]) -> dict[str, tuple[Tokenizer, Library]]:
    made = {}
    for name, (base, change) in VARIANTS.items():
        tokenizer = Tokenizer.from_str(tokenizers[base].tokenizer.to_str())
        change(tokenizer)
        made[name] = tokenizer, quickest(tokenizer)
    return made


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_segments_equal_the_whole(
    variants: dict[str, tuple[Tokenizer, Library]], name: str, texts: list[str]
) -> None:
    tokenizer, library = variants[name]
    segmented = SegmentedTokenizer(tokenizer, cache_bytes=3000, library=library)
    # the second time round some segments come from the cache, some have been evicted
    for text in [*texts, *texts]:
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert list(segmented.encode(text)) == expected
        assert "".join(segmented.split(text)) == text
        assert segmented.cached_bytes <= 3000
        if text:
            assert segmented.edges is not None
            head, tail = segmented.edges
            full = tokenizer.encode(text, add_special_tokens=True).ids
            assert [*head, *expected, *tail] == full


def test_cuts_before_special_tokens(tiny: TokenizerFiles) -> None:
    segmented = SegmentedTokenizer(tiny.tokenizer)
    text = "intro<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert segmented.split(text) == [
        "intro",
        "<|im_start|>user\nhi",
        "<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]
    assert segmented.split("") == []


def test_only_new_segments_are_encoded(tiny: TokenizerFiles) -> None:
    segmented = SegmentedTokenizer(tiny.tokenizer)
    first = "<|im_start|>user\nhi<|im_end|>\n"
    segmented.encode(first)
    plan = segmented.plan(first + "<|im_start|>assistant\nhello<|im_end|>\n")
    assert [part is not None for part in plan.known] == [True, True, False, True]
    assert plan.missing_chars == len("<|im_start|>assistant\nhello")


def test_least_recently_used_segments_leave_first(tiny: TokenizerFiles) -> None:
    segmented = SegmentedTokenizer(tiny.tokenizer, cache_bytes=900)
    for text in ("<|im_start|>a", "<|im_start|>b", "<|im_start|>c", "<|im_start|>a", "<|im_start|>d"):
        segmented.encode(text)
    known = [segmented.plan(f"<|im_start|>{letter}").known[0] is not None for letter in "abcd"]
    # three entries of 280 bytes fit: b was the oldest when d came
    assert known == [True, False, True, True]


def test_what_is_larger_than_the_cache_is_not_kept(tiny: TokenizerFiles) -> None:
    segmented = SegmentedTokenizer(tiny.tokenizer, cache_bytes=300)
    text = "word " * 100
    assert list(segmented.encode(text)) == tiny.tokenizer.encode(text).ids
    assert segmented.cached_bytes == 0


def test_hundreds_of_reserved_tokens(tiny: TokenizerFiles) -> None:
    tokenizer = Tokenizer.from_str(tiny.tokenizer.to_str())
    tokenizer.add_special_tokens([token(f"<|reserved_{i}|>") for i in range(1000)])
    segmented = SegmentedTokenizer(tokenizer)
    text = "".join(f"a<|reserved_{i}|><|reserved_{i}" for i in (0, 1, 10, 100, 999, 1000))
    assert list(segmented.encode(text)) == tokenizer.encode(text, add_special_tokens=False).ids
    assert len(segmented.split(text)) == 6


def test_edges_are_what_add_special_tokens_adds(
    tiny: TokenizerFiles, tokenizers: dict[str, TokenizerFiles]
) -> None:
    assert SegmentedTokenizer(tiny.tokenizer).edges == ((), ())
    assert SegmentedTokenizer(tokenizers["mistral-v3"].tokenizer).edges == ((1,), ())
    tokenizer = Tokenizer.from_str(tiny.tokenizer.to_str())
    set_edge_tokens(tokenizer, bos="<|endoftext|>", eos="<|im_end|>")
    assert SegmentedTokenizer(tokenizer).edges == ((0,), (2,))


def test_no_boundaries_without_added_tokens() -> None:
    from tokenizers.models import WordLevel

    tokenizer: Any = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    segmented = SegmentedTokenizer(tokenizer)
    assert segmented.split("a b a") == ["a b a"]
    assert list(segmented.encode("a b a")) == [0, 1, 0]
