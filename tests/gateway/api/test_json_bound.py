"""JSON that would take long to parse is refused before it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import parse_long, parse_object
from gateway.api.json_bound import MOST_PARTS, MOST_VALUES, _outside_strings
from gateway.errors import BodyTooLarge

_text = st.text(st.sampled_from('[]{}:,"\\/\nnxé\u2028'), max_size=8)
_json = st.recursive(
    st.none() | st.integers() | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)


def signs_in(value: Any) -> int:
    """Lists, objects and members, and the commas between them."""
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(signs_in, value))
    if isinstance(value, dict):
        return 1 + len(value) + max(0, len(value) - 1) + sum(map(signs_in, value.values()))
    return 0


@given(_json, st.booleans(), st.integers(1, 40))
def test_signs_outside_of_strings_wherever_it_is_cut(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert [*_outside_strings(text, b"[{:,", size)][-1] == signs_in(value)


def many(unit: bytes, count: int) -> bytes:
    """An object whose one member is a list with `count` times `unit`, and 1."""
    return b'{"x":[' + (unit + b",") * count + b"1]}"


@pytest.mark.parametrize(
    ("unit", "most"),
    [
        (b"[]", MOST_PARTS - 3),  # three more are the object, its member and its list
        (b"{}", MOST_PARTS - 3),
        (b'{"a":1}', (MOST_PARTS - 3) // 2),
        (b"[[[[]]]]", (MOST_PARTS - 3) // 4),
        (b'"a"', MOST_VALUES),
        (b"1", MOST_VALUES),
        (b"NaN", MOST_PARTS - 3),
    ],
)
def test_as_many_as_may_be_and_one_more(unit: bytes, most: int) -> None:
    assert len(parse_object(many(unit, most))["x"]) == most + 1
    with pytest.raises(BodyTooLarge, match=r"more than \d+ (values|lists)"):
        parse_object(many(unit, most + 1))


@pytest.mark.anyio
async def test_a_long_one_is_looked_at_in_steps_and_no_further_than_need_be() -> None:
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns, coming
        turns += 1
        coming = loop.call_soon(turn)

    coming = loop.call_soon(turn)
    text = "a, b, c " * (2 * MOST_VALUES)  # 19.2 MB, with twice as many commas and as many more
    assert await parse_long(json.dumps({"x": text}).encode()) == {"x": text}
    assert turns >= 18
    turns = 0
    with pytest.raises(BodyTooLarge, match="values"):
        await parse_long(many(b'"h"', 5_000_000))
    coming.cancel()
    # 20 MB, of which the first 4.8 say enough
    assert turns in (4, 5)


def test_a_text_may_hold_what_it_likes() -> None:
    code = 'a["b"] = {c: [d, "\\\\"]};\n' * (MOST_PARTS // 2)
    assert parse_object(json.dumps({"x": code}).encode()) == {"x": code}
