"""Where prompts of one kind part ways, with figures known by construction."""

from __future__ import annotations

from array import array
from itertools import pairwise
from random import Random

import pytest

from gateway.diagnosis.divergence import Head, divergence, equal_blocks, head_of

SALT = 7


def words(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(50_000) for _ in range(count)]


def head(tokens: list[int]) -> Head:
    return head_of(array("I", tokens), SALT)


def test_pieces_cover_the_text_once() -> None:
    one = head(words(1, 1000))
    spans = sorted(one.pieces.values())
    assert spans[0][0] == 0
    assert all(start + length == after for (start, length, _), (after, *_) in pairwise(spans))
    assert sum(total for *_, total in spans) == one.tokens == 1000
    assert len(one.blocks) == 1000 // 16
    # a mean of eight tokens a piece, give or take
    assert 80 < len(spans) < 180


def test_a_token_in_front_shifts_blocks_and_no_pieces() -> None:
    text = words(1, 800)
    plain, shifted = head(text), head([99, *text])
    assert equal_blocks(plain, shifted) == 0
    lost = plain.pieces.keys() - shifted.pieces.keys()
    assert len(lost) <= 2


def of_text(text: str) -> Head:
    data = text.encode()
    tokens = array("I")
    tokens.frombytes(data + bytes(-len(data) % 4))
    return head_of(tokens, SALT, from_bytes=True)


def test_a_letter_in_front_shifts_no_pieces_of_bytes() -> None:
    text = " ".join(str(n) for n in words(1, 400))
    plain, shifted = of_text(text), of_text("x" + text)
    assert plain.tokens == (len(text) + 3) // 4
    assert len(plain.blocks) == plain.tokens // 16
    assert equal_blocks(plain, shifted) == 0
    assert len(plain.pieces.keys() - shifted.pieces.keys()) <= 2
    assert 0.99 * plain.tokens <= sum(total for *_, total in plain.pieces.values()) <= plain.tokens


def test_other_salts_give_other_fingerprints() -> None:
    tokens = array("I", words(1, 64))
    assert not set(head_of(tokens, 1).blocks) & set(head_of(tokens, 2).blocks)


def test_a_changing_first_line_is_found_at_block_0() -> None:
    system = words(1, 600)
    heads = [head([*words(100 + n, 8), *system, *words(200 + n, 20)]) for n in range(12)]
    found = divergence(heads)
    (kind,) = found.kinds
    assert kind.prompts == 12
    assert kind.diverges_at_block == 0
    assert kind.equal_prefix_tokens == 0
    # the piece at each seam mixes both sides
    assert 560 <= kind.equal_text_tokens <= 600
    assert 8 <= kind.changed_tokens <= 8 + 64
    assert not kind.shuffled
    assert 0.8 < found.lost_share < 0.95


@pytest.mark.parametrize("period", [1, 2, 3, 5, 7, 11, 28, 45])
def test_a_sentence_said_over_and_over_is_equal_all_of_it(period: int) -> None:
    """600 tokens of it behind 8 that change: whichever of its tokens are places to cut, and if none is."""
    for seed in range(8):
        system = (words(1000 + seed, period) * 600)[:600]
        heads = [head([*words(100 + n, 5 + n), *system]) for n in range(8)]
        (kind,) = divergence(heads).kinds
        assert kind.prompts == 8
        assert kind.diverges_at_block == 0
        # up to a longest piece at each end mixes with what is not equal
        assert 600 - 2 * 64 <= kind.equal_text_tokens <= 600
        assert not kind.shuffled


def test_a_sentence_said_over_and_over_in_bytes() -> None:
    """1,680 bytes of it, 420 tokens, behind an id whose length changes, and a question."""
    system = "You are a helpful assistant. " * 58
    heads = [of_text(f"{n * 7919}.{n} {system}" + f"q{n}" * 20) for n in range(30)]
    found = divergence(heads)
    (kind,) = found.kinds
    assert kind.prompts == 30
    assert kind.diverges_at_block == 0
    assert kind.equal_prefix_tokens == 0
    assert 420 - 2 * 64 <= kind.equal_text_tokens <= 421
    assert 0.6 < found.lost_share < 0.97


def test_repetition_at_the_front_loses_nothing() -> None:
    system = words(1, 11) * 50
    assert divergence([head([*system, *words(100 + n, 40)]) for n in range(12)]).kinds == ()


def test_a_piece_counts_as_often_as_both_have_it() -> None:
    """A phrase of 20 tokens, 30 times in one prompt and twice in the others: 40 tokens of 600 are no kind."""
    phrase = words(1, 20)
    few = [head([*words(100 + n, 300), *phrase * 2, *words(200 + n, 300)]) for n in range(4)]
    assert divergence([*few, head(phrase * 30)]).kinds == ()


def test_shuffled_tools_whose_descriptions_repeat_are_called_so() -> None:
    tools = [words(n, 4) + words(50 + n, 9) * 9 for n in range(8)]
    random, heads = Random(3), []
    for _ in range(10):
        random.shuffle(tools)
        heads.append(head([t for tool in tools for t in tool]))
    (kind,) = divergence(heads).kinds
    assert kind.prompts == 10
    assert kind.shuffled


def test_an_id_in_the_middle_is_found_where_it_is() -> None:
    before, behind = words(1, 200), words(2, 500)
    heads = [head([*before, *words(300 + n, 4), *behind]) for n in range(8)]
    (kind,) = divergence(heads).kinds
    assert kind.diverges_at_block == 200 // 16
    assert kind.equal_prefix_tokens == 192


def test_shuffled_tools_are_called_so() -> None:
    tools = [words(n, 80) for n in range(8)]
    random, heads = Random(3), []
    for _ in range(10):
        random.shuffle(tools)
        heads.append(head([t for tool in tools for t in tool]))
    (kind,) = divergence(heads).kinds
    assert kind.shuffled


def test_what_ends_with_the_change_loses_nothing() -> None:
    system = words(1, 600)
    assert divergence([head([*system, *words(100 + n, 40)]) for n in range(12)]).kinds == ()


def test_turns_of_one_chat_lose_nothing() -> None:
    chat: list[int] = []
    heads = []
    for turn in range(10):
        chat += words(turn, 60)
        heads.append(head(chat))
    assert divergence(heads).lost_share == 0.0


def test_strangers_are_of_no_kind() -> None:
    assert divergence([head(words(n, 400)) for n in range(10)]).lost_tokens == 0


def test_nothing_to_compare() -> None:
    assert divergence([]).lost_share == 0.0
    assert divergence([head(words(1, 100))]).kinds == ()


def test_what_changes_behind_equal_words_is_counted() -> None:
    """Five words, a request id and a time of 20 tokens, and 300 more: the change is not at the prompt's
    first token, and some pieces before it are equal."""
    before, after = words(1, 40), words(2, 300)
    heads = [head([*before, *words(100 + n, 20), *after]) for n in range(8)]
    (kind,) = divergence(heads).kinds
    assert kind.diverges_at_block == 2
    # 32 of the 40 are two whole blocks; up to a piece before and behind is counted with the 20
    assert 20 <= kind.changed_tokens <= 20 + 8 + 64
    assert not kind.shuffled
