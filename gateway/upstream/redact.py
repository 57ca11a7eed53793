"""Takes fields out of JSON without touching the bytes of the others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_ESCAPED = b"\\u00"
"""How an escaped character of a name begins; texts in other scripts have other escapes."""


def encode_members(members: dict[str, msgspec.Raw]) -> bytes:
    """An object from its members: each value's bytes are as they came."""
    pairs = [msgspec.json.encode(name) + b":" + bytes(value) for name, value in members.items()]
    return b"{" + b",".join(pairs) + b"}"


def in_any_spelling(name: str) -> bytes:
    """A pattern of the JSON strings that say `name`, whichever of its characters are escaped."""
    spelled = []
    for character in name:
        units = character.encode("utf-16-be").hex()
        escaped = "".join(rf"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        spelled.append(b"(?:%s|(?i:%s))" % (re.escape(character.encode()), escaped.encode()))
    return b'"' + b"".join(spelled) + b'"'


def _common_ending(texts: Sequence[bytes]) -> bytes:
    length = 0
    if texts:
        shortest = min(map(len, texts))
        while length < shortest and len({text[-length - 1] for text in texts}) == 1:
            length += 1
    return texts[0][-length:] if length else b""


class Redactor:
    """Removes the named fields at any depth where their value is not null.

    An engine without the feature may send the field as null in every answer, however it is spaced or spelt.
    That tells nothing, so such bytes pass, and the usual answer costs a scan and no parsing.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self._marks = [json.dumps(name).encode() for name in sorted(self.names)]
        self._nulls = [mark + b":null" for mark in self._marks]
        # the usual names share their ending, so that one search tells that none of them is there
        shared = _common_ending(self._marks)
        hints = [shared] if len(shared) > len(b"params") else self._marks
        self.signs = (_ESCAPED, *hints) if names else ()
        """Bytes that are nowhere in what names none of the fields."""
        spellings = b"|".join(in_any_spelling(name) for name in sorted(self.names))
        self._spelled = re.compile(spellings) if self.names else None
        filled = rb"(?:%s)[ \t\r\n]*+:[ \t\r\n]*+(?!null)" % spellings
        self._filled = re.compile(filled) if self.names else None

    def concerns(self, data: bytes) -> bool:
        """Whether `data` names one of the fields with something in it."""
        # find, not `in`: on bytes that tries to read the needle as a number first, and costs double
        for sign in self.signs:
            if data.find(sign) >= 0:
                break
        else:
            return False
        if data.find(_ESCAPED) < 0:
            counts = zip(self._marks, self._nulls, strict=True)
            if all(data.count(mark) == data.count(null) for mark, null in counts):
                return False
        return self._filled is not None and self._filled.search(data) is not None

    def redact(self, data: bytes) -> bytes:
        """`data`, one JSON value, without the fields. What is not JSON comes back as it is."""
        try:
            return self._value(data)
        except msgspec.DecodeError:
            return self._leniently(data)
        except RecursionError:
            return data

    def _leniently(self, data: bytes) -> bytes:
        """For what engines write with Python's own library (NaN): the values stay, their bytes may not."""
        try:
            return json.dumps(self._without(json.loads(data)), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return data

    def _without(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self._without(inner)
                for name, inner in value.items()
                if name not in self.names or inner is None
            }
        return [self._without(inner) for inner in value] if isinstance(value, list) else value

    def _value(self, data: bytes) -> bytes:
        if self._spelled is None or self._spelled.search(data) is None:
            return data
        if data.lstrip()[:1] == b"{":
            members = _members.decode(data)
            kept = {
                name: msgspec.Raw(self._value(bytes(value)))
                for name, value in members.items()
                if name not in self.names or bytes(value) == b"null"
            }
            return encode_members(kept)
        if data.lstrip()[:1] == b"[":
            return b"[" + b",".join(self._value(bytes(item)) for item in _items.decode(data)) + b"]"
        return data
