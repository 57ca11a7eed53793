"""The decoder: tokens of several sequences in, hidden states and logits out.

Matrix multiplications see all tokens of a step at once, whosever they are; attention goes sequence by
sequence, over its own blocks. K and V are written before they are read, so what a step computes doesn't
depend on how a prompt was cut into steps (beyond the rounding of float32 sums).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.model.attention import attend
from workers.model.config import ModelConfig
from workers.model.kv_store import Indices, PagedKv
from workers.model.rope import F32, inverse_frequencies, rotate, rotations
from workers.model.weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """New tokens of one sequence: rows row … row+count-1 of the step, positions start … start+count-1."""

    row: int
    count: int
    start: int
    block_table: Indices

    @property
    def stop(self) -> int:
        return self.start + self.count


class Decoder:
    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self._inv_freq = inverse_frequencies(config.rope, config.head_dim)

    def forward(self, tokens: Indices, spans: Sequence[Span], kv: PagedKv) -> F32:
        """Feeds `tokens` [rows], writes their K and V, returns the last layer's hidden states
        [rows, hidden], not yet normed (see `logits`)."""
        positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        slots = np.concatenate([kv.slots(span.block_table, span.start, span.count) for span in spans])
        cos, sin = rotations(self._inv_freq, positions)
        x = self.weights.embed[tokens]
        for i, layer in enumerate(self.weights.layers):
            q = self._project(layer, x, cos, sin, slots, kv, i)
            x += _linear(_attend_spans(q, spans, kv, i), layer.o, layer.o_bias)
            x += self._mlp(layer, x)
        return x

    def logits(self, hidden: F32) -> F32:
        """[rows, hidden] → [rows, vocab]."""
        normed = _rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)
        return _linear(normed, self.weights.head, None)

    def _project(
        self, layer: LayerWeights, x: F32, cos: F32, sin: F32, slots: Indices, kv: PagedKv, index: int
    ) -> F32:
        """Writes K and V of layer `index`; returns the rotated queries [rows, heads, head_dim]."""
        c = self.config
        normed = _rms_norm(x, layer.input_norm, c.rms_norm_eps)
        heads = _linear(normed, layer.qkv, layer.qkv_bias).reshape(len(x), -1, c.head_dim)
        rotated = heads[:, : c.num_heads + c.num_kv_heads]
        rotate(rotated, cos, sin)
        kv.k[index].write(slots, rotated[:, c.num_heads :])
        kv.v[index].write(slots, heads[:, c.num_heads + c.num_kv_heads :])
        return rotated[:, : c.num_heads]

    def _mlp(self, layer: LayerWeights, x: F32) -> F32:
        """SwiGLU (Shazeer 2020, arXiv:2002.05202): down(silu(gate) × up)."""
        normed = _rms_norm(x, layer.post_norm, self.config.rms_norm_eps)
        gate_up = _linear(normed, layer.gate_up, layer.gate_up_bias)
        gate, up = np.split(gate_up, 2, axis=1)
        return _linear(_swiglu(gate, up), layer.down, layer.down_bias)


def _attend_spans(q: F32, spans: Sequence[Span], kv: PagedKv, layer: int) -> F32:
    return np.concatenate(
        [
            attend(
                q[span.row : span.row + span.count],
                kv.k[layer].read(span.block_table, span.stop),
                kv.v[layer].read(span.block_table, span.stop),
                span.start,
            )
            for span in spans
        ]
    )


def _linear(x: F32, weight: F32, bias: F32 | None) -> F32:
    product: F32 = x @ weight.T
    if bias is not None:
        product += bias
    return product


def _rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Zhang & Sennrich 2019, arXiv:1910.07467."""
    norms: F32 = np.sqrt(np.einsum("th,th->t", x, x) / np.float32(x.shape[1]) + np.float32(eps))
    normed: F32 = x / norms[:, None]
    normed *= weight
    return normed


def _swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) × up, in one buffer: the step's largest arrays are here."""
    with np.errstate(over="ignore"):  # exp(-x) of a very negative x: the quotient is rightly 0
        out = np.exp(-gate)
    out += 1
    np.divide(gate, out, out=out)
    out *= up
    return out
