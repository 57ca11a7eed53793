"""Causal attention of one sequence's new tokens over all its K/V."""

from __future__ import annotations

import math

import numpy as np

from workers.model.rope import F32

TILE_ELEMENTS = 4_000_000
"""Bound on the scores held at once (16 MB): long prompts are attended in tiles of queries."""
TILE_QUERIES = 128
"""Keys behind a tile's last query are never touched, so smaller tiles waste less above the diagonal."""


def attend(q: F32, k: F32, v: F32, start: int) -> F32:
    """softmax(q kᵀ / √head_dim, causal) v.

    `q` [n, heads, head_dim] are the queries of positions start … start+n-1; `k`, `v`
    [kv_heads, start+n, head_dim] are those of all positions. Returns [n, heads × head_dim]. Query heads share
    K/V heads in runs of heads / kv_heads (Ainslie et al. 2023, arXiv:2305.13245).
    """
    n, heads, head_dim = q.shape
    kv_heads = k.shape[0]
    group = heads // kv_heads
    scaled = q * np.float32(1.0 / math.sqrt(head_dim))
    grouped = scaled.reshape(n, kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    out = np.empty((n, heads, head_dim), dtype=np.float32)
    rows = max(1, min(TILE_QUERIES, TILE_ELEMENTS // (heads * (start + n))))
    for a in range(0, n, rows):
        b = min(a + rows, n)
        seen = start + b
        tile = grouped[:, :, a:b].reshape(kv_heads, group * (b - a), head_dim)
        mixed = _softmax_mix(tile, k[:, :seen], v[:, :seen], b - a)
        out[a:b] = (
            mixed.reshape(kv_heads, group, b - a, head_dim).transpose(2, 0, 1, 3).reshape(b - a, heads, -1)
        )
    return out.reshape(n, heads * head_dim)


def _softmax_mix(q: F32, k: F32, v: F32, queries: int) -> F32:
    """`q` [kv_heads, group × queries, head_dim]; the last `queries` keys are the queries' own positions."""
    scores: F32 = q @ k.swapaxes(1, 2)
    if queries > 1:
        own = scores.reshape(len(q), -1, queries, k.shape[1])[..., -queries:]
        own += np.triu(np.full((queries, queries), -np.inf, dtype=np.float32), k=1)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: F32 = scores @ v
    mixed /= scores.sum(axis=-1, keepdims=True)
    return mixed
