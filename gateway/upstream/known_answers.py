"""Heads of answers that were read before: an engine says the same each time, but for the date and the length.

So nearly all are looked up, and the parser is asked about the first one alone.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.upstream.headers import Headers, cuts_length, without_length
from gateway.upstream.wire import Framing, ResponseHead

_DATE_BEGINS = b"\r\ndate: "
_DATE = re.compile(rb"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_DATE_LENGTH = 29
MOST_DIGITS = 18
_MOST = 64
_LONGEST = 4096


class _Known(msgspec.Struct, frozen=True):
    status: int
    headers: Headers
    framing: Framing
    notes: dict[str, Any]
    keep_alive: bool
    length_at: int | None
    """Its place among the headers; None where there is none."""
    date_at: int | None


class KnownAnswers:
    """Of one connection. None of them answers a HEAD."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, head: bytes) -> tuple[ResponseHead, bool, int] | None:
        """What the bytes of a head mean, blank line included: it, whether the connection may go on behind its
        answer, and the bytes of a body of known length. None where they have to be read."""
        text, length, date = _cut(head)
        known = self._known.get(text)
        if known is None:
            return None
        headers = known.headers.copy()
        if known.length_at is not None:
            if not length.isdigit() or len(length) > MOST_DIGITS:
                return None
            headers[known.length_at] = (b"content-length", length)
        if known.date_at is not None:
            if _DATE.fullmatch(date) is None:
                return None
            headers[known.date_at] = (b"date", date)
        read = ResponseHead(known.status, headers, known.framing, known.notes)
        return read, known.keep_alive, int(length or 0)

    def learn(self, head: bytes, read: ResponseHead, keep_alive: bool) -> None:
        """`head` was read, and may stand."""
        text, length, date = _cut(head)
        names = [name for name, _ in read.headers]
        if (
            len(head) > _LONGEST
            or names.count(b"content-length") != cuts_length(text)
            or bool(length) != cuts_length(text)
            or names.count(b"date") != bool(date)
            or (date and _DATE.fullmatch(date) is None)
        ):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[text] = _Known(
            read.status,
            read.headers.copy(),
            read.framing,
            read.notes,
            keep_alive,
            names.index(b"content-length") if length else None,
            names.index(b"date") if date else None,
        )


def _cut(head: bytes) -> tuple[bytes, bytes, bytes]:
    """A head without length and date, and both of these, as far as a first look can tell."""
    text, length = without_length(head, len(head) - 4)
    at = text.find(_DATE_BEGINS) + len(_DATE_BEGINS)
    if at < len(_DATE_BEGINS):
        return text, length, b""
    return text[:at] + text[at + _DATE_LENGTH :], length, text[at : at + _DATE_LENGTH]
