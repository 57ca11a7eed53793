"""How much a JSON text may hold: parsing it keeps everybody else waiting, and what comes of it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gateway.errors import BodyTooLarge

MOST_PARTS = 200_000
"""Lists, objects and members of objects. A chat of 60,000 messages has fewer."""
MOST_VALUES = 1_200_000
"""Of lists and objects, all in all: prompts may be given as lists of tokens. Parsing is one step, and so many
take it a tenth of a second."""
_MANY_TIMES = 8
_SLICE = 1024 * 1024
"""Bytes that are looked at in one step: some hundredths of a second."""


def check_parsing(text: bytes) -> None:
    """Raises BodyTooLarge. What strings hold does not count, unless it is eight times as much."""
    if len(text) <= MOST_PARTS:
        return  # as most texts: too short to hold as many
    for _ in _checks(text):
        pass


async def check_parsing_in_steps(text: bytes) -> None:
    """The same, with turns for others in between."""
    for _ in _checks(text):
        await asyncio.sleep(0)


def check_slow_parsing(text: bytes) -> None:
    """The same for Python's own parser, which takes long for a value too."""
    for _ in _check(text, b"[{:,", MOST_PARTS, "values, for JSON that not every parser takes"):
        pass


def _checks(text: bytes) -> Iterator[None]:
    yield from _check(text, b"[{:", MOST_PARTS, "lists, objects and members of objects")
    yield from _check(text, b",", MOST_VALUES, "values")


def _check(text: bytes, signs: bytes, most: int, what: str) -> Iterator[None]:
    """Yields between two slices of the text."""
    if len(text) <= most:
        return
    there = sum(text.count(sign) for sign in signs)
    refusal = BodyTooLarge(f"the request's body has more than {most} {what}")
    if there > _MANY_TIMES * most:
        raise refusal
    if there > most:
        for outside in _outside_strings(text, signs):
            if outside > most:
                raise refusal
            yield


def _outside_strings(text: bytes, signs: bytes, size: int = _SLICE) -> Iterator[int]:
    """How many of `signs` are, up to the end of each slice of `size` bytes: of each a few scans in C."""
    others = bytes(set(range(256)) - set(signs + b'"'))
    start, outside, inside = 0, 0, False
    while start < len(text):
        piece = text[start : start + size]
        start += len(piece)
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # an escape must not be cut in two
            piece += text[start : start + 1]
            start += 1
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        # two quotes with no sign between them go: every sign is inside or outside as before
        runs = piece.translate(None, others).replace(b'""', b"").split(b'"')
        outside += sum(map(len, runs[inside::2]))
        inside ^= len(runs) % 2 == 0
        yield outside
