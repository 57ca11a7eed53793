from __future__ import annotations

import pytest

from gateway.diagnosis.turns import Conversations, Replies, Reply, TurnRow, first_of_group
from gateway.types import BlockKey


def keys(*numbers: int) -> list[BlockKey]:
    return [BlockKey(n) for n in numbers]


def test_a_prompt_that_contains_an_earlier_one_is_its_next_turn() -> None:
    seen = Conversations()
    assert seen.turn(keys(1, 2)) == 1
    assert seen.turn(keys(1, 2, 3, 4)) == 2
    assert seen.turn(keys(1, 9)) == 1
    assert seen.turn(keys(1, 2, 3, 4, 5)) == 3
    # asked again: the same turn; branched off an older turn: counted from there
    assert seen.turn(keys(1, 2, 3, 4, 5)) == 3
    assert seen.turn(keys(1, 2, 8)) == 2
    assert seen.turn([]) == 1


def test_the_longest_silent_conversation_is_forgotten() -> None:
    seen = Conversations(max_conversations=2)
    for n in (1, 2, 3):
        seen.turn(keys(n))
    assert seen.turn(keys(1, 10)) == 1
    assert seen.turn(keys(3, 30)) == 2


@pytest.mark.parametrize(
    ("turn", "group"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (8, 5), (9, 9), (16, 9), (17, 17)]
)
def test_groups_of_turns_double(turn: int, group: int) -> None:
    assert first_of_group(turn) == group


def test_rows_are_medians() -> None:
    replies = Replies()
    for n, seconds in enumerate((0.1, 0.3, 0.2), 1):
        replies.add(Reply(1, 100 * n, 10 * n, seconds, 2 * seconds))
    replies.add(Reply(7, 900, 700, None, 3.0))
    assert replies.by_turn() == (
        TurnRow(1, 3, 200, 20, 0.2, 0.4),
        TurnRow(5, 1, 900, 700, None, 3.0),
    )
