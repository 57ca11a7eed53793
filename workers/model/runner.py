"""The Runner that computes: one step of the scheduler becomes one forward pass of the decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workers.model.decoder import Decoder, Span
from workers.model.kv_store import KvDtype, PagedKv
from workers.model.loaded import LoadedModel
from workers.model.rope import F32
from workers.model.sampling import History, sample
from workers.types import Sampled, StepItem


class NumpyRunner:
    """Implements `workers.types.Runner`. Owns the K/V of `num_blocks` blocks; not safe for two threads."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int = 16,
        kv_dtype: KvDtype = "float32",
        rng: np.random.Generator | None = None,
    ) -> None:
        """`rng` draws for requests without a seed; by default it is seeded by the system."""
        config = model.config
        self.vocab_size = config.vocab_size
        self.eos_token_ids = config.eos_token_ids
        self.kv = PagedKv(
            layers=config.num_layers,
            heads=config.num_kv_heads,
            head_dim=config.head_dim,
            blocks=num_blocks,
            block_size=block_size,
            dtype=kv_dtype,
        )
        self._decoder = Decoder(config, model.weights)
        self._rng = np.random.default_rng() if rng is None else rng

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        if not items:
            return []
        logits = iter(self.logits(items))
        return [self._sample(item, next(logits)) if item.samples else None for item in items]

    def logits(self, items: Sequence[StepItem]) -> F32:
        """Feeds the step; returns the logits of its sampling items' last tokens, [sampling items, vocab]."""
        spans = _spans(items)
        tokens = np.concatenate([np.asarray(item.tokens, dtype=np.int64) for item in items])
        hidden = self._decoder.forward(tokens, spans, self.kv)
        last = [span.row + span.count - 1 for span, item in zip(spans, items, strict=True) if item.samples]
        return self._decoder.logits(hidden[last])

    def _sample(self, item: StepItem, logits: F32) -> Sampled:
        history = History(item.prompt_token_ids, item.output_token_ids)
        return sample(logits, item.sampling, history, self.eos_token_ids, self._rng)


def _spans(items: Sequence[StepItem]) -> list[Span]:
    spans: list[Span] = []
    row = 0
    for item in items:
        count = len(item.tokens)
        spans.append(Span(row, count, item.start, np.asarray(item.block_table, dtype=np.int64)))
        row += count
    return spans
