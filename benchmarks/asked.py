"""What tools take on their command lines, and whether a run may replace what the documents tell of."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import click

PART = "not the whole, so no page and no kept result is written: --json FILE keeps the figures"


MOST = 10_000_000
"""Of what is counted: more is a slip of the finger."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Output:
    """Where a run's figures go; `result` is None where they are only shown."""

    result: Path | None
    pages: bool


def output(given: Path | None, usual: Path, *, whole: bool, page: bool) -> Output:
    """`usual` is kept with the documents: only a `whole` run that is `given` no other place writes there and
    into the pages, or one of which the page is asked for."""
    pages = page or (whole and given is None)
    return Output(given or (usual if pages else None), pages)


def names(text: str, known: Collection[str]) -> list[str]:
    """Those of a comma-separated list, all where none is named. Raises ValueError for unknown ones."""
    found = [name for part in text.split(",") if (name := part.strip())]
    if unknown := [name for name in found if name not in known]:
        raise ValueError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    return found or list(known)


def beginnings(wanted: Sequence[str], known: Collection[str]) -> None:
    """Raises ValueError where nothing known begins like one of `wanted`."""
    if unknown := [name for name in wanted if not any(other.startswith(name) for other in known)]:
        raise ValueError(
            f"unknown: {', '.join(unknown)}; there are: {'; '.join(known)} "
            "(a name with a comma wants ; between names)"
        )


def count(text: str) -> int:
    """An argparse type: one or more, and no more than anybody waits for."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    if number > MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is too many: {MOST:,} are the most")
    return number


def seconds(text: str) -> float:
    """An argparse type: more than none, and no more than a day."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    if number > DAY_S:
        raise argparse.ArgumentTypeError(f"{text!r} are too many seconds: {DAY_S:,} are the most, a day")
    return number


def amount(text: str) -> float:
    """An argparse type: none or more."""
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return number


def _number(text: str) -> float:
    """Below 0 where it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        return -1.0
    return number if isfinite(number) else -1.0


def cores(text: str) -> tuple[str, str]:
    """An argparse type, ``0,1`` or ``0-2,3``: those of what is measured, for `taskset`, and the core of the
    rest, which is none of them."""
    first, _comma, other = text.partition(",")
    try:
        own, rest = set(span(first)), int(other)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 0,1 or 0-2,3") from None
    there = os.sched_getaffinity(0)
    found = ", ".join(map(str, sorted(there)))
    if len(there) < 2:
        raise argparse.ArgumentTypeError(
            f"two cores are needed, for what is measured is alone on its own; there is one: {found}"
        )
    if missing := sorted({*own, rest} - there):
        raise argparse.ArgumentTypeError(f"no core {', '.join(map(str, missing))}; there are: {found}")
    if rest in own:
        raise argparse.ArgumentTypeError(
            f"{text!r} has core {rest} twice: what is measured is alone on its own, and the load on another"
        )
    return first, other


def span(text: str) -> range:
    """``3`` or ``0-2``. Raises ValueError."""
    first, dash, last = text.partition("-")
    found = range(int(first), int(last if dash else first) + 1)
    if not found:
        raise ValueError(f"{text} are none")
    return found


STANDARD_OUTPUT = "- is no file: standard output is for people; name a file (./- for one of that name)"


def writable(text: str) -> Path:
    """An argparse type: a file that can be written."""
    if text == "-":
        raise argparse.ArgumentTypeError(STANDARD_OUTPUT)
    path = Path(text)
    if why := unwritable(path):
        raise argparse.ArgumentTypeError(why)
    return path


def unwritable(path: Path) -> str:
    """Why no file can be written there; empty where it can. Missing folders are made when it is written."""
    if path.is_dir():
        return f"{path} is a folder"
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if there != path and not there.is_dir():
        return f"{path} cannot be written: {there} is no folder"
    return "" if os.access(there, os.W_OK) else f"{path} cannot be written: no permission in {there}"


class OutputFile(click.Path):
    """A click type: a file that can be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            self.fail(STANDARD_OUTPUT, param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if why := unwritable(path):
            self.fail(why, param, ctx)
        return path


class Finite(click.FloatRange):
    """A click type: neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
