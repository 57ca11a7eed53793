"""Reads tensors of a .safetensors file as float32, in place where they are float32 already.

The library's NumPy reader knows no bfloat16, and copies; mapped pages are shared by all workers on a machine.
Format: 8 bytes little-endian length, that much JSON {name: {dtype, shape, data_offsets}}, then the bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt

from workers.model.errors import ModelFilesInvalid
from workers.model.rope import F32

_DTYPES: dict[str, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}
_LARGEST_HEADER = 100 * 2**20


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """Raises ModelFilesInvalid for a file that isn't what it claims to be, already when opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ModelFilesInvalid(f"{path} can't be read: {error}") from error
        size = int.from_bytes(self._bytes[:8].tobytes(), "little")
        if len(self._bytes) < 8 or size > min(_LARGEST_HEADER, len(self._bytes) - 8):
            raise ModelFilesInvalid(f"{path} is not a safetensors file, or was cut off")
        self._data = self._bytes[8 + size :]
        try:
            header = msgspec.json.decode(self._bytes[8 : 8 + size].tobytes(), type=dict[str, Any])
            self.metadata: dict[str, str] = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
            self._entries = msgspec.convert(header, dict[str, _Entry])
        except msgspec.MsgspecError as error:
            raise ModelFilesInvalid(f"{path}: header: {error}") from error
        for name, entry in self._entries.items():
            start, stop = entry.data_offsets
            if not 0 <= start <= stop <= len(self._data):
                raise ModelFilesInvalid(f"{path}: tensor {name!r} lies outside the file: was it cut off?")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._entries)

    def read(self, name: str) -> F32 | None:
        """None where there is no such tensor. Read-only where no conversion was needed."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.dtype not in _DTYPES:
            raise ModelFilesInvalid(
                f"{self.path}: tensor {name!r} has element type {entry.dtype}; "
                f"supported: {', '.join(_DTYPES)}"
            )
        start, stop = entry.data_offsets
        try:
            tensor = self._data[start:stop].view(np.ndarray).view(_DTYPES[entry.dtype]).reshape(entry.shape)
        except ValueError as error:
            raise ModelFilesInvalid(f"{self.path}: tensor {name!r}: {error}") from error
        return tensor.astype(np.float32, copy=False)
