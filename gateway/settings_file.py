"""The file of settings (`--config`), read at the start and again at each reload."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway import yaml_text
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Written:
    """Values by the names of settings, and how each is found again: its file, its line, its name there."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


class ConfigFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._spoke = False

    def read(self) -> Written:
        """Raises ConfigError. A file that said something and is empty by now is one, too: whoever saves it
        just then, or emptied it by mistake, does not mean that workers leave and keys are no longer asked
        for."""
        try:
            document = yaml_text.read(self.path)
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from error
        except yaml_text.Malformed as error:
            raise ConfigError(f"{self.path}, {error}" if error.line else f"{self.path}: {error}") from None
        said = document.value
        if said is None and self._spoke:
            raise ConfigError(
                f"{self.path} says nothing at all, and did before: is it being written? "
                "Where that is meant, it says {}"
            )
        if not isinstance(said, dict | None):
            raise ConfigError(f"{self.path}: settings are wanted, a line `name: value` for each")
        written = self._by_name(said or {}, document.lines)
        self._spoke = self._spoke or said is not None
        return written

    def _by_name(self, said: dict[Any, Any], lines: dict[str, int]) -> Written:
        written = Written()
        for key, value in said.items():
            name = str(key).replace("-", "_")
            line = lines.get(str(key))
            place = f"{self.path}, line {line}: {key}" if line else f"{self.path}: {key}"
            if name in written.values:
                raise ConfigError(f"{place} is a second time what {written.places[name]} is")
            written.values[name], written.places[name] = value, place
        return written
