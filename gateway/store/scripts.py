"""Lua scripts: package data beside this module or its callers', sent by digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str = field(repr=False)
    sha: str = field(init=False)

    @property
    def writes(self) -> bool:
        """Whether a Redis that takes no writes refuses it as a whole: its first line says so."""
        return self.source.startswith("#!lua\n")

    def __post_init__(self) -> None:
        # Redis names a script by the SHA-1 of its text
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def load_script(package: str, name: str) -> Script:
    """`name` is the file's, without ``.lua``, in the folder of `package`."""
    return Script(name, files(package).joinpath(f"{name}.lua").read_text())
