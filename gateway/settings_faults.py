"""What is wrong with a setting, in an operator's words: pydantic speaks to programmers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

_SHOWN = 40
"""Characters of a value that an error repeats."""
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "dict": "a mapping, `name: value`,",
    "path": "a path",
}


def fault_of(error: Mapping[str, Any], *, secret: Collection[str]) -> str:
    """One of pydantic's errors. Values of `secret` settings are not repeated."""
    kind, context = error["type"], error.get("ctx", {})
    name, *inside = error["loc"] or ("",)
    if kind == "value_error":
        return _within(inside) + str(context["error"])
    wanted = _wanted(kind, context)
    if wanted is None:
        return _within(inside) + str(error["msg"])
    got = "" if name in secret else f", not {_shown(error['input'])}"
    return f"{_within(inside)}{wanted} is wanted{got}"


def nearest(name: str, known: Collection[str], prefix: str = "") -> str:
    """A question for the end of an error; empty where nothing is like `name`."""
    near = " or ".join(prefix + other for other in get_close_matches(name, known))
    return f"; is it {near}?" if near else ""


def _wanted(kind: str, context: Mapping[str, Any]) -> str | None:
    if kind == "greater_than_equal":
        return f"{context['ge']:.15g} or more"
    if kind == "greater_than":
        return f"more than {context['gt']:.15g}"
    if kind == "less_than_equal":
        return f"{context['le']:.15g} at most"
    if kind == "literal_error":
        return "one of " + str(context["expected"]).replace(" or ", ", ").replace("'", "")
    return _KINDS.get(kind.partition("_")[0])


def _within(path: list[Any]) -> str:
    """Where in a list or a mapping it is."""
    parts = [f"entry {part + 1}" if isinstance(part, int) else repr(part) for part in path if part != "[key]"]
    return "".join(f"{part}: " for part in parts)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
