"""The fewest tokens of a text, against real tokenizers, and where nobody can say."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from gateway.prompt.base import Endpoint, PromptRequest
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.local import LocalEncoder
from gateway.prompt.token_length import NFC_SHRINKS, TokenLength, token_length

Tokenizers = dict[str, TokenizerFiles]


def copy(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(tokenizer.to_str())


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("name", "most_bytes", "longest", "fewest"),
    [
        # as their vocabularies have it
        ("vllm-tiny", 64, " " * 64, 1000),
        ("smollm2", 81, "\n" + " " * 80, 1000),
        # counted with its blanks as three bytes each, which a text has as one
        ("mistral-v3", 48, " " * 16, 334),
    ],
)
def test_the_longest_token_over_and_over_has_no_fewer(
    tokenizers: Tokenizers, name: str, most_bytes: int, longest: str, fewest: int
) -> None:
    tokenizer = tokenizers[name].tokenizer
    length = token_length(tokenizer)
    assert length is not None
    assert length.most_bytes == most_bytes
    assert count(tokenizer, longest) <= 2, (
        "it is a token, in front of it a blank where the tokenizer puts one"
    )
    text = longest * 1000
    assert length.fewest_tokens(text) == fewest <= count(tokenizer, text)


def test_bytes_without_a_token_count_for_nothing(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["smollm2"].tokenizer
    length = token_length(tokenizer)
    assert length is not None
    gone = "\x04\x06\x13" * 100_000
    assert count(tokenizer, gone) == length.fewest_tokens(gone) == 0
    assert length.fewest_tokens(gone + "a" * 82) == 2


ODD = (
    " " * 90, "\n" * 70, "=" * 100, "\u1fbe\u0308\u0341" * 30, "\u1112\u1161\u11ab" * 30, "\u212a" * 50,
    "<|im_start|>" * 9, "\x04" * 30, "\U000f0000",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tokenizers: Tokenizers) -> dict[str, tuple[Tokenizer, TokenLength]]:
    """Real ones, and one that composes."""
    found = {name: files.tokenizer for name, files in tokenizers.items()}
    found["composed"] = copy(found["vllm-tiny"])
    found["composed"].normalizer = normalizers.NFC()
    lengths = {name: token_length(tokenizer) for name, tokenizer in found.items()}
    return {name: (found[name], length) for name, length in lengths.items() if length is not None}


@pytest.mark.parametrize("name", ["vllm-tiny", "smollm2", "mistral-v3", "composed"])
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.one_of(st.text(max_size=40), st.sampled_from(ODD)), max_size=8))
def test_no_text_has_fewer(
    made: dict[str, tuple[Tokenizer, TokenLength]], name: str, texts: list[str]
) -> None:
    tokenizer, length = made[name]
    text = "".join(texts)
    assert length.fewest_tokens(text) <= count(tokenizer, text)


def test_which_bytes_vanish_is_known_before_they_are_composed_alone(tokenizers: Tokenizers) -> None:
    tokenizer = copy(tokenizers["smollm2"].tokenizer)
    tokenizer.normalizer = normalizers.NFC()
    assert token_length(tokenizer) is None


def test_a_composed_text_has_more_than_a_quarter_of_its_bytes() -> None:
    """Of all that Unicode composes. A text's bytes are at most those of the longest ways to write each of the
    letters that it is made of."""
    written: dict[str, int] = {}
    for letter in map(chr, range(sys.maxunicode + 1)):
        parts = unicodedata.decomposition(letter)
        if parts and not parts.startswith("<") and len(whole := unicodedata.normalize("NFD", letter)) == 1:
            written[whole] = max(written.get(whole, 0), len(letter.encode()))
    shrinks: dict[str, float] = {}
    for letter in map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))):
        parts = unicodedata.normalize("NFD", letter)
        if len(parts) > 1 or parts in written:
            most = sum(max(len(part.encode()), written.get(part, 0)) for part in parts)
            composed = unicodedata.normalize("NFC", letter)
            shrinks[composed] = max(most, len(letter.encode())) / len(composed.encode())
    assert max(shrinks.values()) == 3.5 < NFC_SHRINKS
    assert len(unicodedata.normalize("NFC", "\u1fbe\u0308\u0341").encode()) == 2


def _lowered(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Lowercase()


def _shortened(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace("abc", "a")


def _takes_blanks(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])


def _drops_blanks(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )


def _by_words(tokenizer: Tokenizer) -> None:
    tokenizer.model = models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")


def _whole_unknown(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")


@pytest.mark.parametrize(
    "change", [_lowered, _shortened, _takes_blanks, _drops_blanks, _by_words, _whole_unknown]
)
def test_where_text_may_vanish_nobody_can_say(
    tiny: TokenizerFiles, change: Callable[[Tokenizer], None]
) -> None:
    tokenizer = copy(tiny.tokenizer)
    assert token_length(tokenizer) == TokenLength(64)
    change(tokenizer)
    assert token_length(tokenizer) is None


def test_an_added_token_is_a_token(tiny: TokenizerFiles) -> None:
    tokenizer = copy(tiny.tokenizer)
    tokenizer.add_tokens([AddedToken("é" * 50)])
    assert token_length(tokenizer) == TokenLength(100)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("longest", "cut", "tokenised"),
    [(6250, None, True), (6249, None, False), (6249, 100, True), (None, None, True)],
)
async def test_what_every_engine_refuses_is_not_tokenised(
    tiny: TokenizerFiles, longest: int | None, cut: int | None, tokenised: bool
) -> None:
    """400,000 bytes are 6,250 tokens at the least; one that the engine cuts is none that it refuses."""
    encoder = LocalEncoder(tiny, longest=lambda: longest)
    request = PromptRequest(
        Endpoint.COMPLETIONS,
        "m",
        prompts=["a" * 400_000],
        add_special_tokens=False,
        truncate_prompt_tokens=cut,
    )
    (prompt,) = await encoder.encode(request)
    assert (prompt.exact_tokens > 0) == tokenised
    if not tokenised:
        assert len(prompt.tokens) == 100_000, "an estimate, four characters a token"
    await encoder.close()
