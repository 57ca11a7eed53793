from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.chunks import ChunkReader


def read(*pieces: bytes) -> tuple[ChunkReader, bytes]:
    reader = ChunkReader()
    return reader, b"".join(reader.feed(piece) for piece in pieces)


def by_httptools(data: bytes) -> bytes:
    class Parts(list[bytes]):
        def on_body(self, body: bytes) -> None:
            self.append(body)

    parts = Parts()
    httptools.HttpResponseParser(parts).feed_data(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data
    )
    return b"".join(parts)


def framed(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(parts=st.lists(st.binary(max_size=60), max_size=6), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_any_body_at_any_cuts_is_what_httptools_reads(parts: list[bytes], cuts: list[int]) -> None:
    data = framed(parts)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    reader, body = read(*(data[a:b] for a, b in pairwise(ends)))
    assert body == b"".join(parts) == by_httptools(data)
    assert (reader.complete, reader.error, reader.rest) == (True, None, b"")


def test_a_stream_of_equal_chunks_one_a_read() -> None:
    chunk = b"1a\r\n" + b"x" * 26 + b"\r\n"
    reader, body = read(*[chunk] * 5, b"0\r\n\r\n")
    assert body == b"x" * 130
    assert reader.complete


def test_a_chunk_that_looks_whole_by_its_length_but_is_not() -> None:
    # the second read is as long as a chunk of that size, but the size line is another's data
    reader, body = read(b"4\r\nabcd\r\n", b"4\r\nabcdX\n")
    assert body == b"abcdabcd"
    assert reader.error is not None


def test_extensions_and_trailers_are_dropped_and_what_follows_is_kept() -> None:
    reader, body = read(b"3 ;a=b\r\nabc\r\n0\r\nx-sum: 1\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert body == b"abc"
    assert reader.complete
    assert reader.rest == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b"1_0\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"\r\nabc\r\n",
        b"3\nabc\r\n\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n\r",
        b"fffffffffffffffff\r\nabc",
        b"3;\x00\r\nabc\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n" + b"a: b\r\n" * 20_000,
        b"3;" + b"a" * 20_000,
        b"3;" + b"a" * 20_000 + b"\r\nabc\r\n",
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_an_error(data: bytes) -> None:
    reader, _ = read(data)
    assert reader.error is not None
    assert not reader.complete


def test_a_body_that_breaks_off_is_not_complete() -> None:
    for cut in range(len(framed([b"abc", b"de"])) - 1):
        reader, _ = read(framed([b"abc", b"de"])[:cut])
        assert not reader.complete
        assert reader.error is None


def test_where_the_next_bytes_begin_a_chunk() -> None:
    data = b"3\r\nabc\r\n" + b"2;x\r\nde\r\n" + b"0\r\na: b\r\n\r\n"
    between = []
    for cut in range(len(data) + 1):
        reader, _ = read(data[:cut])
        if reader.between:
            between.append(cut)
    assert between == [0, 8, 17]
    wrong, _ = read(b"3\r\nabc\n")
    assert not wrong.between
