"""Answers that an engine, or something before it, has compressed though nobody asked."""

from __future__ import annotations

import zlib

from gateway.errors import UpstreamProtocolError
from gateway.types import Usage
from gateway.upstream.headers import Headers
from gateway.upstream.redact import Redactor
from gateway.upstream.usage import read_usage

_MAGIC = b"\x1f\x8b"


def coding_of(headers: Headers) -> bytes:
    """What an answer's ``Content-Encoding`` says, in lower case; empty for one that is plain."""
    said = b",".join(value for name, value in headers if name == b"content-encoding")
    names = (name.strip().lower() for name in said.split(b","))
    return b", ".join(name for name in names if name not in (b"", b"identity"))


class Inflater:
    """A stream of gzip or deflate. `limit`: bytes that one read may unfold to. Raises UpstreamProtocolError,
    also for a coding that it does not know."""

    def __init__(self, coding: bytes, limit: int) -> None:
        if coding not in (b"gzip", b"x-gzip", b"deflate"):
            raise UpstreamProtocolError(
                f"the content-encoding {coding.decode('latin-1')!r:.60}, which was not asked for"
            )
        self.gzip = coding != b"deflate"
        self._limit = limit
        self._held = b""
        self._inflater = None if not self.gzip else zlib.decompressobj(zlib.MAX_WBITS | 16)

    def feed(self, data: bytes, last: bool) -> bytes:
        data, self._held = self._held + data, b""
        if self._inflater is None:
            if len(data) < 2 and not last:
                self._held = data
                return b""
            # some send the bare deflate under the name: it lacks zlib's head (RFC 1950, section 2.2)
            headed = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS if headed else -zlib.MAX_WBITS)
        try:
            plain = self._inflater.decompress(data, self._limit + 1)
        except zlib.error as error:
            raise UpstreamProtocolError("a compressed answer that is none") from error
        if len(plain) > self._limit:
            raise UpstreamProtocolError(f"an answer of more than {self._limit} bytes")
        if self._inflater.unused_data or (last and not self._inflater.eof):
            raise UpstreamProtocolError("a compressed answer that breaks off, or goes on behind its end")
        return plain


class Packed:
    """A body of gateway.upstream.bodies: compressed JSON, kept until it is whole. Where a field has to leave
    it goes on `plain`, else byte for byte as it came."""

    def __init__(self, coding: bytes, limit: int, redactor: Redactor) -> None:
        self.usage: Usage | None = None
        self.events = 0
        self.plain = False
        self._inflater = Inflater(coding, limit)
        self._limit = limit
        self._redactor = redactor
        self._body = bytearray()

    def feed(self, data: bytes, last: bool) -> bytes:
        self.events = self.events or int(bool(data))
        self._body += data
        if len(self._body) > self._limit:
            raise UpstreamProtocolError(f"an answer of more than {self._limit} bytes")
        if not last or not self._body:
            return b""
        body = bytes(self._body)
        text = self._text(body)
        self.usage = read_usage(text)
        if not self._redactor.concerns(text):
            return body
        self.plain = True
        return self._redactor.redact(text)

    def _text(self, body: bytes) -> bytes:
        if body.lstrip()[:1] in (b"{", b"[") or (self._inflater.gzip and not body.startswith(_MAGIC)):
            return body  # it only says so
        return self._inflater.feed(body, True)
