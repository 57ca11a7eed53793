from __future__ import annotations

import pytest

from benchmarks.wire.engine import ANSWER, CHUNK, LAST, STREAM_HEAD, whole
from benchmarks.wire.framing import Answer, body_length


@pytest.mark.parametrize("wire", [whole(ANSWER), STREAM_HEAD + CHUNK + LAST])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_answer_is_whole_with_its_last_byte(wire: bytes, step: int) -> None:
    answer = Answer()
    ends = [answer.feed(wire[at : at + step]) for at in range(0, len(wire), step)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert answer.ok


def test_a_head_is_not_yet_a_body() -> None:
    answer = Answer()
    assert not answer.feed(STREAM_HEAD)
    assert not answer.begun
    assert not answer.feed(CHUNK[:1])
    assert answer.begun


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    answer = Answer()
    assert answer.feed(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    assert not answer.ok
    assert not answer.begun


@pytest.mark.parametrize(
    ("head", "length"), [(b"post / http/1.1\r\ncontent-length: 12\r\nhost: a", 12), (b"get / http/1.1", None)]
)
def test_the_length_that_a_head_names(head: bytes, length: int | None) -> None:
    assert body_length(head) == length
