"""The quick tokenizer gives the tokens of the sure one, or is not used."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from gateway.prompt.files import TokenizerFiles
from gateway.prompt.local import LocalEncoder
from gateway.prompt.quick import quickest

REPOSITORY = Path(__file__).resolve().parents[3]
THERE = sys.platform in ("linux", "darwin") and platform.machine() in ("x86_64", "aarch64", "arm64")
"""Where a build of fastokens is among the requirements."""


def sure(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def any_texts(tokenizer: Tokenizer, count: int) -> Iterator[str]:
    """Others than the library was judged by: cuts of our own prose and code, any characters, added tokens."""
    random = Random(12)
    prose = "".join(path.read_text() for path in sorted((REPOSITORY / "docs").glob("*.md"))[:6])
    code = "".join(path.read_text() for path in sorted((REPOSITORY / "gateway").glob("*.py")))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for _ in range(count):
        text = ""
        for _ in range(random.randrange(1, 12)):
            source = random.choice((prose, code))
            at = random.randrange(len(source))
            text += source[at : at + random.randrange(80)]
            text += "".join(chr(random.randrange(0xD800)) for _ in range(random.randrange(4)))
            text += chr(random.randrange(0x1F300, 0x1FAFF)) + random.choice((*added, "", " ", "\n"))
        yield text


@pytest.mark.parametrize("name", ["vllm-tiny", "smollm2", "mistral-v3"])
def test_it_gives_the_same_tokens(tokenizers: dict[str, TokenizerFiles], name: str) -> None:
    tokenizer = tokenizers[name].tokenizer
    library = quickest(tokenizer)
    assert library.name == ("fastokens" if THERE else "tokenizers")
    texts = list(any_texts(tokenizer, 400))
    assert library.encode(texts) == sure(tokenizer, texts)


@pytest.mark.parametrize(
    "text", ["a" * 50_000, " " * 50_000, "漢" * 50_000, "é\u0301" * 20_000, "1" * 50_000]
)
def test_long_runs(tiny: TokenizerFiles, text: str) -> None:
    assert quickest(tiny.tokenizer).encode([text]) == sure(tiny.tokenizer, [text])


def test_threads_do_not_disturb_each_other(tiny: TokenizerFiles) -> None:
    library = quickest(tiny.tokenizer)
    texts = [text * 40 for text in any_texts(tiny.tokenizer, 40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: library.encode([text])[0], texts))
    assert found == sure(tiny.tokenizer, texts)


def test_one_that_gives_other_tokens_is_not_used(
    tokenizers: dict[str, TokenizerFiles], caplog: pytest.LogCaptureFixture
) -> None:
    own, other = tokenizers["vllm-tiny"].tokenizer, tokenizers["smollm2"].tokenizer
    with caplog.at_level(logging.WARNING):
        library = quickest(own, lambda _json: other)
    assert library.name == "tokenizers"
    assert "other tokens" in caplog.text
    assert library.encode(["one two"]) == sure(own, ["one two"])


def test_a_tokenizer_that_it_cannot_read_stays_with_the_sure_one() -> None:
    words = Tokenizer(models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    library = quickest(words)
    assert library.name == "tokenizers"
    assert library.encode(["two one none"]) == [[1, 0, 2]]


def test_without_a_build_of_it_the_sure_one_encodes(tiny: TokenizerFiles) -> None:
    library = quickest(tiny.tokenizer, None)
    assert (library.name, library.inline_chars) == ("tokenizers", 4096)
    assert library.encode(["one two"]) == sure(tiny.tokenizer, ["one two"])


class _Panic(BaseException):
    """As extensions in Rust raise it."""


class _Stumbles:
    """The sure one, but for texts with a word in them."""

    def __init__(self, tokenizer: Tokenizer, over: str = "stumble") -> None:
        self._tokenizer = tokenizer
        self._over = over

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        if self._over in text:
            raise _Panic
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


def test_a_text_that_it_stumbles_over_is_encoded_all_the_same(tiny: TokenizerFiles) -> None:
    library = quickest(tiny.tokenizer, lambda _json: _Stumbles(tiny.tokenizer))
    assert library.name == "fastokens"
    texts = ["it walks", "it stumbles"]
    assert library.encode(texts) == sure(tiny.tokenizer, texts)


def test_one_that_stumbles_when_it_is_tried_is_not_used(tiny: TokenizerFiles) -> None:
    """Or the sure one would have been compared with itself."""
    library = quickest(tiny.tokenizer, lambda _json: _Stumbles(tiny.tokenizer, over="漢漢漢"))
    assert library.name == "tokenizers"


def test_one_that_panics_over_a_tokenizer_is_not_used(tiny: TokenizerFiles) -> None:
    def read(_json: str) -> Any:
        raise _Panic

    assert quickest(tiny.tokenizer, read).name == "tokenizers"


def test_invalid_unicode_is_an_error_as_before(tiny: TokenizerFiles) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)):
        quickest(tiny.tokenizer).encode(["\ud800"])


def test_the_encoder_says_which_it_uses(tiny: TokenizerFiles) -> None:
    assert LocalEncoder(tiny).library == ("fastokens" if THERE else "tokenizers")
    assert LocalEncoder(tiny, library=quickest(tiny.tokenizer, None)).library == "tokenizers"
