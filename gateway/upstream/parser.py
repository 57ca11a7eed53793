"""Bytes of answers → heads and bodies. Pure: no socket, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable

import httptools

from gateway.upstream.chunks import ChunkReader
from gateway.upstream.headers import Headers
from gateway.upstream.known_answers import MOST_DIGITS, KnownAnswers
from gateway.upstream.wire import Framing, ResponseHead

MAX_HEAD = 64 * 1024
"""Bytes of status line and headers that a worker may send."""
_HEAD_END = b"\r\n\r\n"
MOST_INTERIM = 64
"""Interim answers (1xx) before the one that counts."""
_START = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}[ \r]")
_A_START = b"HTTP/1.1 200 "
_BARE_LF = re.compile(rb"(?<!\r)\n")


def _as_it_comes(data: bytes) -> bytes:
    return data


def _may_become_a_head(data: bytes) -> bool:
    """Where not, waiting for the rest of it would be in vain."""
    return _START.match(data + _A_START[len(data) :]) is not None and _BARE_LF.search(data) is None


class AnswerParser:
    """One connection's answers, one after the other. `begin` before each; `feed` what arrives, and it returns
    what of it is body; then read `head`, `complete` and `error`.

    Heads are read by httptools, where the connection has not had them before. Bodies are not: one call for
    each chunk of a stream is all that its framing may cost, so `feed` is each time the very function that the
    next bytes are for.

    Interim answers (1xx) are skipped, 64 of them at most, trailers dropped. What cannot be framed with
    certainty is an error: both length headers, several lengths, a transfer coding other than chunked, an
    upgrade nobody asked for.
    """

    feed: Callable[[bytes], bytes]

    def __init__(self, max_head: int = MAX_HEAD) -> None:
        self._max_head = max_head
        self._sizes: dict[bytes, int] = {}
        self._known = KnownAnswers()
        self.begin(b"")

    def begin(self, method: bytes) -> None:
        self._method = method
        self._headers: Headers = []
        self._held = b""
        self._left = 0
        self._chunks: ChunkReader | None = None
        self._interim = 0
        self.feed = self._read_heads
        self.received = False
        """Anything at all."""
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = False
        """The connection may serve another request after this answer."""
        self.error: str | None = None

    @property
    def between_chunks(self) -> bool:
        """The next bytes begin a chunk, or the end, of a chunked body."""
        return self._chunks is not None and self._chunks.between

    def end(self) -> None:
        """The connection was closed in good order: that ends a body which nothing else delimits."""
        if self.head is not None and self.head.framing is Framing.CLOSE and self.error is None:
            self.complete = True

    # -- what is fed, step by step ------------------------------------------------------------------------

    def _read_heads(self, data: bytes) -> bytes:
        """Until the one that is no interim answer; returns what of its body came behind it."""
        self.received = self.received or bool(data)
        if self._interim == 0 and not self._held and self._method != b"HEAD":
            end = data.find(_HEAD_END) + 4
            if end > 3 and (known := self._known.find(data[:end])) is not None:
                self.head, self._keep_alive, self._left = known
                if self.head.framing is Framing.LENGTH and len(data) == end + self._left:
                    # nearly every answer that is no stream comes whole, in one read
                    self.complete, self.reusable, self.feed = True, self._keep_alive, self._unasked
                    return data[end:]
                return self._begin_body(data[end:], self.head)
        if self._held:
            data, self._held = self._held + data, b""
        while self.head is None and self.error is None:
            end = data.find(_HEAD_END)
            if end < 0 or end > self._max_head:
                self._held = data
                if len(data) > self._max_head:
                    self.error = f"more than {self._max_head} bytes of headers"
                elif not _may_become_a_head(data):
                    self.error = "bytes that are not HTTP"
                break
            self._read_head(data[: end + 4])
            data = data[end + 4 :]
        return b"" if self.head is None or self.error is not None else self._begin_body(data, self.head)

    def _begin_body(self, data: bytes, head: ResponseHead) -> bytes:
        framing = head.framing
        if framing is Framing.NONE:
            self._end(clean=not data)
            return b""
        if framing is Framing.CHUNKED:
            self._chunks = ChunkReader(self._sizes, self._end_chunks)
            self.feed = self._chunks.feed
        elif framing is Framing.LENGTH:
            self.feed = self._measured
        else:
            self.feed = _as_it_comes
        return self.feed(data)

    def _measured(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left > 0:
            return data
        self._end(clean=self._left == 0)
        return data[: self._left] if self._left else data

    def _end_chunks(self, chunks: ChunkReader) -> None:
        self.error = chunks.error
        if chunks.complete:
            self._end(clean=not chunks.rest)

    def _end(self, *, clean: bool) -> None:
        """`clean`: nothing came behind the answer."""
        self.complete = True
        self.reusable = self._keep_alive and clean
        self.feed = self._unasked

    def _unasked(self, data: bytes) -> bytes:
        """An answer behind the answer: nothing on this connection is to be trusted."""
        self.reusable = False
        return b""

    def _read_head(self, head: bytes) -> None:
        with_body = self._method != b"HEAD"
        if with_body and (known := self._known.find(head)) is not None:
            self.head, self._keep_alive, self._left = known
            return
        self._parse_head(head)
        if with_body and self.head is not None and self.error is None:
            self._known.learn(head, self.head, self._keep_alive)

    def _parse_head(self, head: bytes) -> None:
        if _START.match(head) is None:
            # httptools takes any status of three digits, and any version
            self.error = "bytes that are not HTTP"
            return
        parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.error is None:
                self.error = f"bytes that are not HTTP ({error!s:.100})"

    # -- called by httptools ------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers = []
            self._interim += 1
            if self._interim > MOST_INTERIM:
                self.error = f"more than {MOST_INTERIM} interim answers"
            return
        framing = self._framing(status)
        if self.error is None:
            self._keep_alive = self._parser.should_keep_alive()
            self.head = ResponseHead(status, self._headers, framing)

    def _framing(self, status: int) -> Framing:
        length = chunked = False
        for name, value in self._headers:
            if name == b"content-length":
                if length or not value.isdigit() or len(value) > MOST_DIGITS:
                    self.error = f"content-length {value.decode('latin-1')!r:.60}"
                    return Framing.NONE
                length, self._left = True, int(value)
            elif name == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked":
                    self.error = f"transfer-encoding {value.decode('latin-1')!r:.60}"
                chunked = True
        if status == 101:
            self.error = "an upgrade that was not asked for"
        elif length and chunked:
            self.error = "both content-length and transfer-encoding"
        if self._method == b"HEAD" or status in (204, 304):
            return Framing.NONE
        return Framing.CHUNKED if chunked else Framing.LENGTH if length else Framing.CLOSE
