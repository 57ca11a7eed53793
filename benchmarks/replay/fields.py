"""Fields of a trace's rows, checked: whatever is wrong is a ValueError that says where and what to mend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

LARGEST_NAME = 2**31 - 1
"""Of a block whose number is used as it is: it stands for its tokens, which are of 32 bits."""


class Row:
    """One object of a file, and where it stands."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def get(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None:
            raise ValueError(f"{self.where} has no {name}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Finite."""
        value = self.get(name) if default is None else self.fields.get(name, default)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isinstance(value, bool) or not isfinite(number):
            raise ValueError(f"{self.where}: {name} is {value!r}, which is no finite number")
        return number

    def count(self, name: str, least: int) -> int:
        """A whole number of at least that."""
        number = self.number(name)
        if number != int(number) or number < least:
            raise ValueError(
                f"{self.where}: {name} is {self.fields[name]!r}, which is no whole number of {least} or more"
            )
        return int(number)

    def names(self, name: str, tokens: int, unit: int) -> list[Any]:
        """Of blocks: of every one that `tokens` fill, at least."""
        found = self.get(name)
        if isinstance(found, str):
            found = found.split()
        if not isinstance(found, list) or not all(type(block) in (int, str) for block in found):
            raise ValueError(f"{self.where}: {name} is no list of blocks' names")
        if len(found) < tokens // unit:
            raise ValueError(
                f"{self.where}: {name} names {len(found)} blocks of {unit} tokens; {tokens} tokens fill "
                f"{tokens // unit}, and each needs its name"
            )
        return found

    def rows(self, name: str, of: str) -> list[Row]:
        """The objects of a list of at least one."""
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ValueError(f"{self.where}: {name} is no list of {of}")
        if not found:
            raise ValueError(f"{self.where} has no {of}: leave it out")
        return [Row(one, f"{self.where}, {name}[{place}]") for place, one in enumerate(found)]


def json_rows(lines: Iterable[str]) -> Iterator[Row]:
    """One a line; empty lines are passed over."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        # also numbers of more digits than Python reads, and more brackets in each other than it follows
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"line {number} is no JSON object")
        yield Row(found, f"line {number}")


def numbered(names: list[Any], where: str) -> tuple[int, ...]:
    """Names that are used as they are."""
    for name in names:
        if type(name) is not int or not 0 <= name <= LARGEST_NAME:
            raise ValueError(f"{where}: block {name!r} is no whole number from 0 to {LARGEST_NAME}")
    return tuple(names)


def some(names: list[Any], name: str, where: str) -> list[Any]:
    """At least one of a request."""
    if not names:
        raise ValueError(f"{where}: {name} names no block; a prompt shorter than one still has its own name")
    return names
