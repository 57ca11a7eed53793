from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.live.__main__ import plan_named
from benchmarks.live.plan import ChatShape, chats, window
from benchmarks.live.traces import TraceShape, replayed
from benchmarks.live.words import TOKENIZER, Words, load_words


@pytest.fixture(scope="module")
def words() -> Words:
    return load_words()


def test_a_word_is_a_token_and_a_name_is_a_text(words: Words) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    text = words.text("any", 500)
    assert len(tokenizer.encode(" " + text, add_special_tokens=False).ids) == 500
    assert words.text("any", 500) == load_words().text("any", 500)
    assert words.text("other", 500) != text


def test_chats_wait_for_their_own_answers_and_share_their_system_prompt(words: Words) -> None:
    shape = ChatShape(
        conversations=10, turns=3, systems=2, in_turn=True, rate=6.0, at_once=12, system_words=5, user_words=4
    )
    plan = chats(shape, words, seed=1)
    assert [turn.after for turn in plan.turns[:6]] == [None, 0, 1, None, 3, 4]
    assert [turn.goes_on for turn in plan.turns[:3]] == [False, True, True]
    # 12 conversations under way at 6 turns a second: each asks every 2 s
    assert plan.turns[2].at - plan.turns[0].at == pytest.approx(4.0)
    systems = [turn.system for turn in plan.turns[::3]]
    assert len(set(systems)) == 2
    assert systems[0] == systems[2] != systems[1]
    assert [turn.system for turn in plan.turns[1:3]] == ["", ""]
    assert chats(shape, words, seed=1) == plan
    assert chats(shape, words, seed=2) != plan


def test_chats_draw_their_system_prompt(words: Words) -> None:
    """With each conversation on its own engine of four nearly every system prompt is on every engine, as
    where peers were measured; in turn, each would be on one."""
    drawn, in_turn = (
        [turn.system for turn in plan_named(name, 0, None).turns if not turn.goes_on]
        for name in ("chats", "chats-in-turn")
    )
    assert len({(system, number % 4) for number, system in enumerate(drawn)}) == 31  # of 32
    assert len({(system, number % 4) for number, system in enumerate(in_turn)}) == 8
    assert set(drawn) == set(in_turn)


def test_slow_engines_are_asked_slowly(words: Words) -> None:
    plan = plan_named("chats", 0, 16)
    slow = plan.faster(3.0)
    assert len(slow.turns) == 16
    assert window(slow.turns) == pytest.approx(3 * window(plan.turns))
    assert slow.slo_ttft_s == 3 * plan.slo_ttft_s
    assert [turn.text for turn in slow.turns] == [turn.text for turn in plan.turns]


def test_chats_are_what_peers_were_measured_with(words: Words) -> None:
    """Each conversation on its own engine of four: of 8 prompts over a system prompt only their growth is
    computed, and the system prompt in 32 conversations of 160."""
    shape = ChatShape()
    grown = shape.user_words + shape.answer_tokens
    asked = shape.turns * shape.system_words + sum(k * grown for k in range(1, shape.turns + 1))
    computed = shape.turns * grown + shape.system_words * shape.systems * 4 / shape.conversations
    assert shape.system_words + shape.turns * grown == pytest.approx(8000, rel=0.05)
    assert 1 - computed / asked == pytest.approx(0.865, abs=0.005)


def test_a_trace_becomes_text_with_the_same_prefixes(words: Words, tmp_path: Path) -> None:
    rows = [(0, 600, [1, 2]), (3000, 1100, [1, 3, 4]), (6000, 512, [1])]
    with gzip.open(tmp_path / "toy.jsonl.gz", "wt") as file:
        for at, tokens, ids in rows:
            line = {"timestamp": at, "input_length": tokens, "output_length": 33, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")
    shape = TraceShape("toy.jsonl.gz", "mooncake", requests=3, rate=5.0, blocks=10)
    plan = replayed(shape, words, seed=0, folder=tmp_path)
    texts = [turn.text.split() for turn in plan.turns]
    # a sixteenth of 600, 1,100 and 512 tokens; a block of 512 is 32 words
    assert [len(text) for text in texts] == [37, 68, 32]
    assert texts[0][:32] == texts[1][:32] == texts[2]
    assert texts[0][32:] != texts[1][32:37]
    assert [turn.answer_tokens for turn in plan.turns] == [2, 2, 2]
    # three requests in 6 s are one every 2 s; 5 a second is ten times that
    assert [turn.at for turn in plan.turns] == pytest.approx([0.0, 0.3, 0.6])


def test_a_real_trace_loads() -> None:
    plan = plan_named("mooncake", 0, 200)
    assert len(plan.turns) == 200
    assert all(turn.after is None or turn.after < n for n, turn in enumerate(plan.turns))
    assert any(turn.after is not None for turn in plan.turns)
