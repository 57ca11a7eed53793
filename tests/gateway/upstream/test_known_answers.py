"""Heads of answers that are looked up: what counts as known, and that they mean what was read."""

from __future__ import annotations

import pytest

from gateway.upstream.known_answers import KnownAnswers
from gateway.upstream.parser import AnswerParser
from gateway.upstream.wire import Framing, ResponseHead


def head(length: bytes = b"3", date: bytes = b"Mon, 30 Nov 2026 06:00:00 GMT", more: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ndate: %s\r\nserver: uvicorn\r\nContent-Length: %s\r\ncontent-type: a/b\r\n%s\r\n"
        % (date, length, more)
    )


def read(length: bytes = b"3", date: bytes = b"Mon, 30 Nov 2026 06:00:00 GMT") -> ResponseHead:
    headers = [
        (b"date", date),
        (b"server", b"uvicorn"),
        (b"content-length", length),
        (b"content-type", b"a/b"),
    ]
    return ResponseHead(200, headers, Framing.LENGTH)


def learned() -> KnownAnswers:
    known = KnownAnswers()
    known.learn(head(), read(), True)
    assert len(known) == 1
    return known


def test_date_and_length_may_differ() -> None:
    known = learned()
    assert known.find(head()) == (read(), True, 3)
    later = b"Tue, 01 Dec 2026 23:59:59 GMT"
    assert known.find(head(b"12345", later)) == (read(b"12345", later), True, 12345)
    assert known.find(head(b"0")) == (read(b"0"), True, 0)


@pytest.mark.parametrize(
    "other",
    [
        head(b""),
        head(b"+3"),
        head(b"3 "),
        head(b"3, 3"),
        head(b"3\r\nContent-Length: 3"),
        head(b"1" * 19),
        head(date=b"Mon, 30 Nov 2026 06:00:00 UTC"),
        head(date=b"Mon, 30 Nov 2026\r\nX:00:00 GMT"),
        head(date=b"now"),
        head(more=b"connection: close\r\n"),
        head(more=b"transfer-encoding: chunked\r\n"),
        head().replace(b"200", b"201"),
        head().replace(b"HTTP/1.1", b"HTTP/1.0"),
        head().replace(b"server: uvicorn\r\n", b""),
        head().replace(b"Content-Length: 3\r\n", b""),
        head().replace(b"date: Mon, 30 Nov 2026 06:00:00 GMT\r\n", b""),
        b"\r\n\r\n",
    ],
)
def test_any_other_head_has_to_be_read(other: bytes) -> None:
    assert learned().find(other) is None


def test_a_length_that_is_not_the_first_that_looks_like_one_is_not_learned() -> None:
    known = KnownAnswers()
    known.learn(head().replace(b"server", b"x-length"), read(), True)
    known.learn(head(date=b"yesterday or so, by all means"), read(), True)
    assert len(known) == 0


def test_only_so_many_are_known() -> None:
    known = KnownAnswers()
    for n in range(200):
        known.learn(head(more=b"x-a: %d\r\n" % n), read(), True)
        assert 1 <= len(known) <= 64
    assert known.find(head(more=b"x-a: 199\r\n")) is not None


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n", b"connection: keep-alive\r\n"])
def test_one_connection_reads_and_looks_up_the_same(more: bytes) -> None:
    """As a parser that has seen nothing before says of each answer."""
    one = AnswerParser()
    answers = [
        head(b"3", more=more) + b"abc",
        head(b"5", b"Mon, 30 Nov 2026 06:00:01 GMT", more) + b"abcde",
        head(b"5", more=more) + b"abcde!",  # and a byte too many
        head(b"0", more=more),
        b"HTTP/1.1 100 Continue\r\n\r\n" + head(b"2", more=more) + b"ab",
        head(b"2", more=more).replace(b"Content-Length: 2", b"transfer-encoding: chunked")
        + b"2\r\nab\r\n0\r\n\r\n",
        head(b"x", more=more),
        head(b"2", more=more).replace(b"200", b"204"),
        head(b"4", more=more).replace(b"200", b"204"),
    ]
    for method in (b"POST", b"HEAD", b"POST"):
        for data in answers:
            fresh = AnswerParser()
            for parser in (one, fresh):
                parser.begin(method)
            assert one.feed(data) == fresh.feed(data)
            assert (one.head, one.complete, one.reusable) == (fresh.head, fresh.complete, fresh.reusable)
            assert (one.error, one.received) == (fresh.error, fresh.received)
