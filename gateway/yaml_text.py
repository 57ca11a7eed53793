"""YAML that people write: settings, keys, workers. JSON is YAML too.

A name that stands twice in one mapping is refused: a parser would take the last and forget the others, which
may be a list of keys. What is wrong is said by line, and without what stands there: it may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_KINDS = {"timestamp": "a date", "int": "a whole number", "float": "a number", "bool": "true or false"}


class Malformed(Exception):
    """`what` has nothing of the text; `name` is one of its names, where there is one to tell of."""

    def __init__(self, what: str, line: int | None = None, name: str | None = None) -> None:
        super().__init__(what, line, name)
        self.what = what
        self.line = line
        self.name = name

    def __str__(self) -> str:
        return self.where + ("" if self.name is None else f"{self.name!r} ") + self.what

    @property
    def where(self) -> str:
        return "" if self.line is None else f"line {self.line}: "


@dataclass(frozen=True, slots=True)
class Document:
    value: Any
    """None where the text says nothing: it is empty, or has comments alone."""
    lines: dict[str, int]
    """Where each name of the outermost mapping stands."""


def read(path: Path) -> Document:
    """Raises OSError or Malformed."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Malformed("not UTF-8", line) from None


def parse(text: str) -> Document:
    """Raises Malformed."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        words = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        words = _QUOTED.sub(_untold, words)
        raise Malformed(f"not YAML: {words}", None if mark is None else mark.line + 1) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Malformed("not YAML: a character that no text has", line) from None
    except RecursionError:
        raise Malformed("not YAML: nested too deep") from None
    return Document(value, _lines(node))


def _untold(quoted: re.Match[str]) -> str:
    """Of a parser's message: single characters and the parser's own `<words>` may stay, no more of a text."""
    inside = quoted[0][1:-1]
    return quoted[0] if len(inside) == 1 or inside.startswith(("<", "\\")) else "…"


def _lines(node: yaml.Node | None) -> dict[str, int]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Looked at before `<<` brings in names of another mapping, which these may well stand above."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in seen:
                    raise Malformed(f"stands here again, after line {seen[name]}", line, key.value)
                seen[name] = line
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError):  # the 13th month, !!bool 5, …
            kind = _KINDS.get(node.tag.rpartition(":")[2], "what its tag says")
            raise Malformed(f"what stands there is not {kind}", node.start_mark.line + 1) from None
