"""Reads the metadata of a GGUF file and stops there: no tensors, no NumPy. (The reader of the `gguf` library
builds an object per array element, which takes seconds for a vocabulary.) Layout: the GGUF specification,
versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Key → value, arrays as lists. Raises ConfigError for what is not a readable GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Cursor(view).metadata()
    except (OSError, ValueError, struct.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a readable GGUF file: {error}") from error


class _Cursor:
    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = 0

    def metadata(self) -> dict[str, Any]:
        magic = self._bytes(4)
        version = self._scalar("<I")
        if magic != _MAGIC or version not in (2, 3):
            raise ValueError(f"magic {magic!r}, version {version}")
        self._scalar("<Q")  # number of tensors
        count = self._scalar("<Q")
        return {self._string(): self._value(self._scalar("<I")) for _ in range(count)}

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._scalar("<I"), self._scalar("<Q"))
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in (_STRING, _ARRAY):
            return [self._value(kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown element type {kind}")
        form = f"<{count}{_SCALARS[kind][1]}"
        return list(struct.unpack(form, self._bytes(struct.calcsize(form))))

    def _string(self) -> str:
        return self._bytes(self._scalar("<Q")).decode("utf-8")

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return value

    def _bytes(self, size: int) -> bytes:
        taken = self._view[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("it ends too soon")
        self._at += size
        return taken
