"""Events that differ from one before in their text alone: told without a search, and told the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.types import Usage
from gateway.upstream.redact import Redactor
from gateway.upstream.sse import SseScanner

FIELD = "kv_transfer_params"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", '"', "\\", "\n", "\r", "usage", "error", FIELD, "é", "[DONE]", 'x"usage":{"a":1}']
    ),
    st.text(max_size=5),
)
FIELDS: list[dict[str, Any]] = [
    {},
    {"usage": None},
    {"usage": USAGE},
    {"error": {"code": 500}},
    {FIELD: {"a": 1}},
]


def event(text: str, more: dict[str, Any], *, compact: bool, escaped: bool) -> bytes:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    separators = (",", ":") if compact else (", ", ": ")
    return b"data: " + json.dumps(chunk, separators=separators, ensure_ascii=escaped).encode() + b"\n\n"


def scanner() -> SseScanner:
    return SseScanner(hide_usage=True, redactor=Redactor((FIELD,)))


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from(FIELDS)), max_size=12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_stream_is_told_as_its_events_are_one_by_one(
    said: list[tuple[str, dict[str, Any]]], compact: bool, escaped: bool, together: bool
) -> None:
    events = [event(text, more, compact=compact, escaped=escaped) for text, more in said]
    reads = [b"".join(events)] if together else events
    one = scanner()
    out = b"".join(map(one.feed, reads))
    fresh = [scanner() for _ in events]  # each sees its first event
    assert out == b"".join(each.feed(data) for each, data in zip(fresh, events, strict=True))
    assert one.events == sum(each.events for each in fresh)
    assert one.error == any(each.error for each in fresh)
    assert one.usage == (
        Usage(3, 2, 1) if any("usage" in more and more["usage"] for _, more in said) else None
    )


@pytest.mark.parametrize("text", ["b", "", "usage", "error", FIELD, "é"])
def test_the_next_text_is_one_event_more(text: str) -> None:
    one = scanner()
    first = event("a", {}, compact=True, escaped=False)
    assert one.feed(first) == first
    following = event(text, {}, compact=True, escaped=False)
    assert one.feed(following) == following
    assert (one.events, one.usage, one.error, one.held_bytes) == (2, None, False, 0)


def test_half_an_event_of_a_known_shape_waits_for_its_other_half() -> None:
    one = scanner()
    data = event("abcdef", {}, compact=True, escaped=False)
    one.feed(data)
    for at in range(1, len(data)):
        assert one.feed(data[:at]) + one.feed(data[at:]) == data
    # a half behind which a whole one comes is not one event of that shape
    assert one.feed(b"data: {") == b""
    assert one.feed(data) == b"data: {" + data
    assert one.held_bytes == 0


def test_a_stream_whose_shape_changes_all_the_time() -> None:
    one = scanner()
    for n in range(100):
        data = b'data: {"n":%d,"choices":[{"delta":{"content":"a"}}]}\n\n' % n
        assert one.feed(data) == data
    assert one.events == 100
    assert one.shape is not None
    assert one.shape[0].startswith(b'data: {"n":31,')


def test_a_stream_whose_shape_changes_each_second() -> None:
    one = scanner()
    for second in range(100):
        data = b'data: {"created":%d,"choices":[{"delta":{"content":"a"}}]}\n\n' % second
        for _ in range(8):
            assert one.feed(data) == data
    assert one.events == 800
    assert one.shape is not None
    assert one.shape[0].startswith(b'data: {"created":99,')


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            b'a"}}],"usage":{"prompt_tokens":3,"completion_tokens":2},"x":[{"y":{"z":"',
            (Usage(3, 2, None), False),
        ),
        (b'a"}}],"error":{"code":500},"x":[{"y":{"z":"', (None, True)),
        (b'a"}}]}\n\ndata: {"error":1}\n\ndata: {"x":[{"y":{"z":"', (None, True)),
        (b"a\nevent: error\ndata: b", (None, True)),
        (b"a\revent: error\rdata: b", (None, True)),
    ],
)
def test_what_only_begins_and_ends_like_an_event_of_a_known_shape_is_read(text: bytes, seen: object) -> None:
    one, data = scanner(), event("TEXT", {}, compact=True, escaped=False)
    one.feed(data)
    assert one.shape == (data[: data.find(b"TEXT")], data[data.find(b"TEXT") + 4 :])
    one.feed(data.replace(b"TEXT", text))
    assert (one.usage, one.error) == seen


def test_a_shape_is_known_of_a_whole_plain_event_alone() -> None:
    one = scanner()
    plain = event("a", {}, compact=True, escaped=False)
    one.feed(event("a", {"error": {}}, compact=True, escaped=False))
    assert one.shape is None
    one.feed(plain[:20])
    one.feed(plain[20:])
    assert one.shape is None
    one.feed(event("a\n", {}, compact=True, escaped=False))
    at = plain.rfind(b'"a"') + 1
    assert one.shape == (plain[:at], plain[at + 1 :])
    one.feed(plain[:20])
    assert one.shape is None
