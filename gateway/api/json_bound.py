"""How much a JSON text may hold: parsing it keeps everybody else waiting, and what comes of it is large."""

from __future__ import annotations

from gateway.errors import BodyTooLarge

MOST_PARTS = 200_000
"""Lists, objects and members of objects. A chat of 60,000 messages has fewer."""
MOST_VALUES = 1_500_000
"""Of lists and objects, all in all: prompts may be given as lists of tokens. Parsing is one step, and so many
take it a tenth of a second."""
_MANY_TIMES = 8


def check_parsing(text: bytes) -> None:
    """Raises BodyTooLarge. What strings hold does not count, unless it is eight times as much."""
    _check(text, b"[{:", MOST_PARTS, "lists, objects and members of objects")
    _check(text, b",", MOST_VALUES, "values")


def check_slow_parsing(text: bytes) -> None:
    """The same for Python's own parser, which takes long for a value too."""
    _check(text, b"[{:,", MOST_PARTS, "values, for JSON that not every parser takes")


def _check(text: bytes, signs: bytes, most: int, what: str) -> None:
    if len(text) <= most:
        return
    there = sum(text.count(sign) for sign in signs)
    if there > _MANY_TIMES * most or (there > most and _outside_strings(text, signs) > most):
        raise BodyTooLarge(f"the request's body has more than {most} {what}")


def _outside_strings(text: bytes, signs: bytes) -> int:
    """How many of `signs` are. Whole scans in C: a 30 MB text takes some tenths of a second."""
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # two quotes with no sign between them go: every sign is inside or outside as before
    text = text.translate(None, bytes(set(range(256)) - set(signs + b'"'))).replace(b'""', b"")
    return sum(map(len, text.split(b'"')[::2]))
