"""Paged K/V: all that a transformer has to remember of a token, in blocks that sequences share.

Physical layout, for each layer and for K and V: [kv_heads, blocks, block_size, head_dim]. A sequence's blocks
are gathered by its block table into one [kv_heads, tokens, head_dim] array of float32, ready to multiply.
Memory is zero pages until a block is first written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.model.rope import F32

KvDtype: TypeAlias = Literal["float32", "float16", "int8", "fp8"]
Indices: TypeAlias = npt.NDArray[np.int64]

_STORED: dict[KvDtype, npt.DTypeLike] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "fp8": ml_dtypes.float8_e4m3fn,
}
_LARGEST: dict[KvDtype, float] = {"int8": 127.0, "fp8": 448.0}
"""The largest code. These kinds keep one float32 scale for each token and head: |largest element| / code."""
_FLOAT16_MAX = 65504.0


class PagedTensor:
    """K or V of one layer."""

    def __init__(self, heads: int, blocks: int, block_size: int, head_dim: int, dtype: KvDtype) -> None:
        self._shape = (heads, blocks, block_size, head_dim)
        self._dtype = dtype
        self._data: npt.NDArray[Any] = np.zeros(self._shape, dtype=_STORED[dtype])
        self._scales: F32 | None = None
        if dtype in _LARGEST:
            self._scales = np.zeros((heads, blocks, block_size, 1), dtype=np.float32)

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + (0 if self._scales is None else self._scales.nbytes)

    def write(self, slots: Indices, values: F32) -> None:
        """`values` [tokens, heads, head_dim] go to `slots` [tokens]: block × block_size + offset."""
        heads, blocks, block_size, head_dim = self._shape
        rows = values.transpose(1, 0, 2)
        flat = self._data.reshape(heads, blocks * block_size, head_dim)
        if self._scales is None:
            limited = rows if self._dtype == "float32" else np.clip(rows, -_FLOAT16_MAX, _FLOAT16_MAX)
            flat[:, slots] = limited
            return
        scale = np.abs(rows).max(axis=-1, keepdims=True) / np.float32(_LARGEST[self._dtype])
        codes = rows / np.maximum(scale, np.finfo(np.float32).tiny)
        flat[:, slots] = np.rint(codes) if self._dtype == "int8" else codes.astype(flat.dtype)
        self._scales.reshape(heads, blocks * block_size, 1)[:, slots] = scale

    def read(self, block_table: Indices, tokens: int) -> F32:
        """The first `tokens` positions of a sequence, [heads, tokens, head_dim], dequantised."""
        heads, _, block_size, head_dim = self._shape
        table = block_table[: -(-tokens // block_size)]
        flat = (heads, len(table) * block_size)
        gathered = self._data.take(table, axis=1).reshape(*flat, head_dim)[:, :tokens]
        if self._dtype == "float32":
            return gathered
        values: F32 = gathered.astype(np.float32)
        if self._scales is not None:
            values *= self._scales.take(table, axis=1).reshape(*flat, 1)[:, :tokens]
        return values


class PagedKv:
    """K and V of every layer. Nothing else survives a step."""

    def __init__(
        self, *, layers: int, heads: int, head_dim: int, blocks: int, block_size: int, dtype: KvDtype
    ) -> None:
        self.block_size = block_size
        self.k = [PagedTensor(heads, blocks, block_size, head_dim, dtype) for _ in range(layers)]
        self.v = [PagedTensor(heads, blocks, block_size, head_dim, dtype) for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.k, *self.v))

    def slots(self, block_table: Sequence[int] | Indices, start: int, tokens: int) -> Indices:
        """Where positions start … start+tokens-1 of a sequence live."""
        positions = np.arange(start, start + tokens)
        blocks = np.asarray(block_table, dtype=np.int64)[positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size
