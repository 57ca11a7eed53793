"""A chunked body, unwrapped (RFC 9112, section 7.1). Pure: no socket, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\x00]*)?")
_TRAILER = re.compile(rb"[^\r\n\x00:]+:[^\r\n\x00]*")
_LONGEST_LINE = 16 * 1024
"""Bytes of a chunk's size line, or of a trailer."""
_LONGEST_TRAILERS = 64 * 1024
_KNOWN_SIZES = 4096


class ChunkReader:
    """`feed` what arrives; it returns what of it is body. Then read `complete`, `rest` and `error`.

    A stream's chunks are all of a few sizes, so a size line is understood once and looked up from then on.
    """

    __slots__ = ("_held", "_known", "_left", "_on_end", "_trailers", "complete", "error", "rest")

    def __init__(
        self,
        known: dict[bytes, int] | None = None,
        on_end: Callable[[ChunkReader], None] = lambda _: None,
    ) -> None:
        """`known` are size lines that were understood before: a connection's answers may share them. `on_end`
        is told with the bytes that complete the body or can't be read."""
        self._known = {} if known is None else known
        self._on_end = on_end
        self._held = b""
        """The beginning of a line that is not whole yet."""
        self._left = 0
        """Of the chunk that is being read, with the line end behind its data; 0 between two chunks."""
        self._trailers = -1
        """Bytes of trailers so far; −1 before the last chunk."""
        self.complete = False
        self.rest = b""
        """What came behind the end of the body."""
        self.error: str | None = None

    @property
    def between(self) -> bool:
        """All chunks that have begun are whole, and the last one is yet to come."""
        return not self._left and not self._held and self._trailers < 0 and self.error is None

    def feed(self, data: bytes) -> bytes:
        if not self._left and not self._held and self._trailers < 0:
            # nearly every read of a stream is exactly one chunk
            end = data.find(b"\r\n", 0, 18)
            size = self._known.get(data[:end])
            if size is not None and len(data) == end + size + 4 and data.endswith(b"\r\n"):
                return data[end + 2 : -2]
        out = b"".join(self._pieces(data))
        if self.complete or self.error is not None:
            self._on_end(self)
        return out

    def _pieces(self, data: bytes) -> list[bytes]:
        out: list[bytes] = []
        if self._held:
            data, self._held = self._held + data, b""
        at = self._whole_chunks(data, out) if not self._left and self._trailers < 0 else 0
        while at < len(data) and self.error is None and not self.complete:
            if self._left:
                at = self._take(data, at, out)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._held = data[at:]
                if len(self._held) > _LONGEST_LINE:
                    self.error = "a chunk line that does not end"
                break
            line, at = data[at:end], end + 2
            if self._trailers >= 0:
                self._read_trailer(line)
            else:
                self._begin(line)
        if self.complete:
            self.rest = data[at:]
        return out

    def _whole_chunks(self, data: bytes, out: list[bytes]) -> int:
        """Those at the beginning of `data` that are all there, and of known sizes; returns where they end."""
        known, at = self._known, 0
        while True:
            end = data.find(b"\r\n", at, at + 18)
            size = known.get(data[at:end]) if end > 0 else None
            if size is None:
                return at
            stop = end + 2 + size
            if data[stop : stop + 2] != b"\r\n":
                return at
            out.append(data[end + 2 : stop])
            at = stop + 2

    def _take(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Body bytes up to the end of the chunk, and the line end behind them, as far as they are there."""
        body = min(max(0, self._left - 2), len(data) - at)
        if body:
            out.append(data[at : at + body])
            self._left -= body
            at += body
        while 0 < self._left <= 2 and at < len(data):
            if data[at] != b"\r\n"[2 - self._left]:
                self.error = "a chunk longer than its size"
                break
            self._left -= 1
            at += 1
        return at

    def _begin(self, line: bytes) -> None:
        size = self._known.get(line)
        if size is None:
            match = _SIZE.fullmatch(line)
            if match is None or len(line) > _LONGEST_LINE:
                self.error = f"the chunk size {line.decode('latin-1')!r:.60}"
                return
            size = int(match[1], 16)
            if size and len(line) <= 16 and len(self._known) < _KNOWN_SIZES:
                self._known[line] = size
        if size:
            self._left = size + 2
        else:
            self._trailers = 0

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self.complete = True
            return
        self._trailers += len(line) + 2
        if self._trailers > _LONGEST_TRAILERS or _TRAILER.fullmatch(line) is None:
            self.error = f"the trailer {line.decode('latin-1')!r:.60}"
