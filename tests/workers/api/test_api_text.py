"""Tokens to text, and stop strings in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from workers.api.text import Detokenizer, StopScanner

TOKENIZER = Path(__file__).parents[2] / "data/tokenizers/vllm-tiny/tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def scan(scanner: StopScanner, chunks: list[str]) -> Iterator[str]:
    for chunk in chunks:
        text, stop = scanner.push(chunk)
        yield text
        if stop is not None:
            yield f"|{stop}"
            return
    yield scanner.flush()


def test_a_stop_string_across_three_chunks_is_never_seen() -> None:
    scanner = StopScanner(["</s>"], include=False)
    assert scanner.push("Hi <") == ("Hi ", None)
    assert scanner.push("/") == ("", None)
    assert scanner.push("s> more") == ("", "</s>")


def test_a_false_start_comes_out_as_soon_as_it_is_one() -> None:
    scanner = StopScanner(["</s>"], include=False)
    assert scanner.push("a </") == ("a ", None)
    assert scanner.push("b>") == ("</b>", None)


def test_text_that_ends_in_a_false_start_is_not_lost() -> None:
    scanner = StopScanner(["END"], include=False)
    assert scanner.push("the EN") == ("the ", None)
    assert scanner.flush() == "EN"


def test_the_stop_string_is_kept_where_asked_for() -> None:
    assert StopScanner(["."], include=True).push("one. two") == ("one.", ".")


def test_of_two_stop_strings_the_one_that_completes_first_wins() -> None:
    # "bcd" begins before "c" does, and completes after it
    assert StopScanner(["bcd", "c"], include=False).push("abcde") == ("ab", "c")


def test_before_min_tokens_a_stop_string_is_plain_text() -> None:
    scanner = StopScanner(["ab"], include=False)
    assert scanner.push("ab", armed=False) == ("ab", None)
    assert scanner.push("a", armed=False) == ("", None)
    assert scanner.push("b", armed=True) == ("", "ab")


@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(),
)
def test_cutting_the_text_otherwise_changes_nothing(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    cut = "".join(scan(StopScanner(stops, include=include), chunks))
    by_letter = "".join(scan(StopScanner(stops, include=include), list("".join(chunks))))
    if len({len(stop) for stop in stops}) == 1:
        assert cut == by_letter
    # where several end in one chunk, the earliest end wins; ties of letters go by the order of the list
    assert ("|" in cut) == ("|" in by_letter) == any(stop in "".join(chunks) for stop in stops)


@given(st.lists(st.integers(3, 3899), min_size=1, max_size=40), st.integers(0, 8))
def test_the_stream_says_what_decoding_at_once_says(tokenizer: Tokenizer, ids: list[int], cut: int) -> None:
    prompt, new = ids[:cut], ids[cut:]
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    if "\ufffd" in whole or "\ufffd" in before:
        return  # bytes that are no text: the stream holds them back, or replaces them later
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=True)
    assert before + "".join(detokenizer.step(token) for token in new) == whole


def test_a_character_of_several_tokens_comes_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("né 🙂!", add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=True)
    pieces = [detokenizer.step(token) for token in ids]
    assert "".join(pieces) == "né 🙂!"
    assert len(ids) > len("né 🙂!")
    assert all("\ufffd" not in piece for piece in pieces)


def test_special_tokens_are_text_only_where_asked_for(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_to_id("<|im_end|>")
    assert Detokenizer(tokenizer, [], skip_special_tokens=True).step(end) == ""
    assert Detokenizer(tokenizer, [], skip_special_tokens=False).step(end) == "<|im_end|>"
