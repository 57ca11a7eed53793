"""Bytes of answers → heads and bodies. Pure: no socket, no clock."""

from __future__ import annotations

import httptools

from gateway.upstream.headers import Headers
from gateway.upstream.wire import Framing, ResponseHead

MAX_HEAD = 64 * 1024
"""Bytes of status line and headers that a worker may send."""


class AnswerParser:
    """One connection's answers, one after the other. `begin` before each; `feed` what arrives; then read
    `head`, `take()`, `complete` and `error`.

    Interim answers (1xx) are skipped, trailers dropped. What cannot be framed with certainty is an error:
    both length headers, several lengths, a transfer coding other than chunked, an upgrade nobody asked for.
    """

    def __init__(self, max_head: int = MAX_HEAD) -> None:
        self._max_head = max_head
        self._parser = httptools.HttpResponseParser(self)
        self.begin(b"")

    def begin(self, method: bytes) -> None:
        self._method = method
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self.received = 0
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = False
        """The connection may serve another request after this answer."""
        self.error: str | None = None

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete and self.error is None:
                self.error = f"bytes that are not HTTP ({error!s:.100})"
        if self.head is None and self.error is None and self.received > self._max_head:
            self.error = self._too_long()

    def end(self) -> None:
        """The connection was closed in good order: that ends a body which nothing else delimits."""
        if self.head is not None and self.head.framing is Framing.CLOSE and self.error is None:
            self.complete = True

    def take(self) -> bytes:
        """The body bytes since the last call."""
        parts = self._parts
        if len(parts) == 1:
            return parts.pop()
        data = b"".join(parts)
        parts.clear()
        return data

    # -- called by httptools ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            # an answer behind the answer: nobody asked for it, so nothing on this connection is to be trusted
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.complete:
            return
        if 100 <= status < 200 and status != 101:
            self._headers = []
            return
        framing = self._framing(status)
        if self.received > self._max_head and self._head_size() > self._max_head:
            self.error = self._too_long()
        if self.error is not None:
            return
        self.head = ResponseHead(status, self._headers, framing)
        if self._method == b"HEAD":
            # httptools would wait for the body that such an answer announces and never has
            self.complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.head is not None and not self.complete:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    def _head_size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _too_long(self) -> str:
        return f"more than {self._max_head} bytes of headers"

    def _framing(self, status: int) -> Framing:
        length = chunked = False
        for name, value in self._headers:
            if name == b"content-length":
                length = True
            elif name == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked":
                    self.error = f"transfer-encoding {value!r:.60}"
                chunked = True
        if status == 101:
            self.error = "an upgrade that was not asked for"
        elif length and chunked:
            self.error = "both content-length and transfer-encoding"
        if self._method == b"HEAD" or status in (204, 304):
            return Framing.NONE
        return Framing.CHUNKED if chunked else Framing.LENGTH if length else Framing.CLOSE
