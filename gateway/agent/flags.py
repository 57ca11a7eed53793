"""A command line's long flags, as engines read them: `--name value`, `--name=value`, `_` as good as `-`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.errors import ConfigError


class Flags:
    """What an operator wrote, and what is added to it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._added: list[str] = []

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(self._argv)

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(self._added)

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def value(self, name: str) -> str | None:
        """The value given to a flag; of several the last, as engines take it."""
        at = self._find(name)
        if at is None:
            return None
        _, equals, value = self._argv[at].partition("=")
        if equals:
            return value
        if at + 1 == len(self._argv) or self._argv[at + 1].startswith("--"):
            raise ConfigError(f"{name}: its value is missing")
        return self._argv[at + 1]

    def number(self, name: str, default: int) -> int:
        text = self.value(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit():
            raise ConfigError(f"{name} {text!r}: a whole number is wanted")
        return int(text)

    def dotted(self, name: str) -> dict[str, Any]:
        """`--name.key value` pairs: how vLLM also takes the parts of a JSON flag."""
        found: dict[str, Any] = {}
        for word in self._argv:
            flag = _normal(word.partition("=")[0])
            if flag.startswith(name + "."):
                text = self.value(flag)
                found[flag.removeprefix(name + ".").replace("-", "_")] = _json(text or "")
        return found

    def add_missing(self, name: str, value: str | None = None) -> None:
        if not self.has(name):
            self._add(name, value)

    def replace(self, name: str, value: str) -> None:
        """Sets a flag whose old value, dotted parts included, has gone into the new one."""
        kept: list[str] = []
        skip = False
        for word in self._argv:
            flag, equals, _ = word.partition("=")
            if skip:
                skip = False
            elif _normal(flag) == name or _normal(flag).startswith(name + "."):
                skip = not equals
            else:
                kept.append(word)
        self._argv = kept
        self._add(name, value)

    def _add(self, name: str, value: str | None) -> None:
        words = [name] if value is None else [name, value]
        self._argv += words
        self._added.append(" ".join(words))

    def _find(self, name: str) -> int | None:
        places = [at for at, word in enumerate(self._argv) if _normal(word.partition("=")[0]) == name]
        return places[-1] if places else None


def _normal(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
