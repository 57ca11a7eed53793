from __future__ import annotations

import pytest

from gateway.upstream.parser import AnswerParser
from gateway.upstream.wire import Framing

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a\r\n"
    b"Set-Cookie: b\r\n\r\n5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc"


def feed(parser: AnswerParser, *pieces: bytes, method: bytes = b"POST") -> bytes:
    parser.begin(method)
    out = b""
    for piece in pieces:
        out += parser.feed(piece)
    return out


def test_chunked_at_every_cut_and_again_on_the_same_connection() -> None:
    parser = AnswerParser()
    for cut in range(1, len(CHUNKED)):
        assert feed(parser, CHUNKED[:cut], CHUNKED[cut:]) == b"hello world"
        assert parser.complete
        assert parser.reusable
        assert parser.error is None
        assert parser.head is not None
        assert parser.head.framing is Framing.CHUNKED
        assert parser.head.headers == [
            (b"content-type", b"text/plain"),
            (b"transfer-encoding", b"chunked"),
            (b"set-cookie", b"a"),
            (b"set-cookie", b"b"),
        ]


def test_interim_answers_are_skipped() -> None:
    parser = AnswerParser()
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    for cut in range(1, len(interim + SIZED)):
        data = interim + SIZED
        assert feed(parser, data[:cut], data[cut:]) == b"abc"
        assert parser.head is not None
        assert (parser.head.status, parser.head.headers) == (404, [(b"content-length", b"3")])


def test_interim_answers_are_bounded_for_each_request() -> None:
    parser = AnswerParser()
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    for _ in range(2):
        assert feed(parser, *[early] * 64, SIZED) == b"abc"
        assert parser.error is None
    for pieces in ([early] * 65, [early * 65]):
        assert feed(parser, *pieces, SIZED) == b""
        assert (parser.error, parser.head) == ("more than 64 interim answers", None)


@pytest.mark.parametrize(
    "line",
    ["1.1 099 X", "1.1 000", "1.1 600 X", "1.1 999 X", "1.2 200 OK", "0.9 200 OK", "2.0 200 OK"],
)
def test_a_status_or_version_that_http_1_does_not_have_is_no_head(line: str) -> None:
    parser = AnswerParser()
    whole = f"HTTP/{line}\r\nContent-Length: 3\r\n\r\nabc".encode()
    for pieces in ([whole], [whole[i : i + 1] for i in range(len(whole))]):
        assert feed(parser, *pieces) == b""
        assert (parser.error, parser.head) == ("bytes that are not HTTP", None)


@pytest.mark.parametrize(("line", "status"), [("1.0 200 OK", 200), ("1.1 599", 599), ("1.1 299 X", 299)])
def test_a_status_and_version_that_it_has_is_one(line: str, status: int) -> None:
    parser = AnswerParser()
    assert feed(parser, f"HTTP/{line}\r\nContent-Length: 3\r\n\r\nabc".encode()) == b"abc"
    assert parser.head is not None
    assert parser.head.status == status


@pytest.mark.parametrize(
    "first",
    [b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", b"HTTP/1.1 200 OK\r\nA: b\n", b"\n", b"SSH-2.0-x\r\n",
     b"HTTP/2", b"HTTP/1.1 OK", b"HTTP/1.1  200", b"HTTP/1.1 2000", b"HTTP/1.1\r",
     b"HTTP/1.1 0", b"HTTP/1.1 6", b"HTTP/1.2 ", b"HTTP/0"],
)  # fmt: skip
def test_what_can_become_no_head_is_an_error_at_once(first: bytes) -> None:
    parser = AnswerParser()
    for pieces in ([first], [first[i : i + 1] for i in range(len(first))]):
        assert feed(parser, *pieces) == b""
        assert parser.error == "bytes that are not HTTP"


def test_what_may_still_become_a_head_is_waited_for() -> None:
    parser = AnswerParser()
    for end in range(1, SIZED.index(b"\r\n\r\n") + 4):
        feed(parser, SIZED[:end])
        assert (parser.error, parser.head) == (None, None), SIZED[:end]


def test_a_head_answer_has_no_body_whatever_it_announces() -> None:
    parser = AnswerParser()
    assert feed(parser, b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n", method=b"HEAD") == b""
    assert parser.complete
    assert parser.reusable


def test_a_head_answer_that_brings_a_body_spoils_its_connection() -> None:
    parser = AnswerParser()
    assert feed(parser, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", method=b"HEAD") == b""
    assert parser.complete
    assert not parser.reusable


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    parser = AnswerParser()
    feed(parser, b"HTTP/1.1 %d X\r\n\r\n" % status)
    assert parser.complete
    assert parser.head is not None
    assert parser.head.framing is Framing.NONE


def test_a_body_that_the_close_ends() -> None:
    parser = AnswerParser()
    assert feed(parser, b"HTTP/1.0 200 OK\r\n\r\nab", b"cd") == b"abcd"
    assert not parser.complete
    parser.end()
    assert parser.complete
    assert not parser.reusable


def test_a_short_body_is_not_complete_at_its_end() -> None:
    parser = AnswerParser()
    feed(parser, SIZED[:-1])
    parser.end()
    assert not parser.complete


def test_bytes_behind_the_answer_spoil_the_connection_but_not_the_answer() -> None:
    parser = AnswerParser()
    assert feed(parser, SIZED + b"HTTP/1.1 200 OK\r\n\r\nx") == b"abc"
    assert parser.complete
    assert parser.error is None
    assert not parser.reusable


def test_connection_close_is_not_reusable() -> None:
    parser = AnswerParser()
    feed(parser, SIZED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert parser.complete
    assert not parser.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"<html>not http</html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
)
def test_what_cannot_be_trusted_is_an_error(data: bytes) -> None:
    parser = AnswerParser()
    feed(parser, data)
    assert parser.error is not None
    assert not parser.reusable


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1234567890123456789\r\n\r\n",
            "content-length '1234567890123456789'",
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: br\r\n\r\n", "transfer-encoding 'br'"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "the chunk size 'zz'"),
    ],
)
def test_what_was_sent_is_quoted_as_text(answer: bytes, error: str) -> None:
    parser = AnswerParser()
    parser.begin(b"POST")
    parser.feed(answer)
    assert parser.error is not None
    assert error in parser.error
    assert "b'" not in parser.error
