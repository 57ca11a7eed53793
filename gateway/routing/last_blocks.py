"""The last block that a worker with a draft model holds of a prompt.

Where the draft model reads ahead (EAGLE, MTP), a block's K/V is also of what follows it, and engines deal
with that in their own ways. vLLM from 0.33 on and SGLang keep a block for each way on, and tell in their
events which that is (`gateway.events.ends`). vLLM up to 0.32, and later with a K/V connector, computes the
last block that it has of a prompt anew, always. Where the draft comes from n-grams or a model of its own,
all that is held is served.

None says which it does. So of a worker that speculates the last block is promised where its end is held, or
where such blocks were delivered so often that the engine is taken to be of the last kind; that ends with
the first one that is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.worker import EngineInfo
from gateway.index.base import IndexReader
from gateway.kv.keys import MOST_LOOKAHEAD, end_key
from gateway.types import BlockKey, WorkerId

TRUSTED_AFTER = 8
"""Last blocks in a row that were delivered though they had not been promised."""


class LastBlocks:
    """Of workers whose engines speculate; of others nobody needs to ask."""

    def __init__(self, index: IndexReader) -> None:
        self._index = index
        self._delivered: dict[WorkerId, int] = {}
        self._ahead: set[WorkerId] = set()
        """Workers of which an end was met: all of their blocks have one."""

    def forget(self, worker: WorkerId) -> None:
        self._delivered.pop(worker, None)
        self._ahead.discard(worker)

    def without_ends(self, worker: WorkerId, held: int, stride: int) -> int:
        """Of so many keys that it holds, those of blocks: `stride` are one of its engine's, whose end is
        one more."""
        return held * stride // (stride + 1) if worker in self._ahead else held

    def promised(
        self,
        worker: WorkerId,
        info: EngineInfo,
        keys: Sequence[BlockKey],
        ids: Sequence[int],
        tokens: int,
        unit: int,
    ) -> int:
        """Of the `tokens` of a prompt that it holds, in whole blocks of its engine, those to be promised.
        `keys` are the prompt's, in units of `unit` tokens, `ids` its tokens."""
        if not tokens or self._is_trusted(worker):
            return tokens
        last = keys[tokens // unit - 1]
        # SGLang looks no farther than to the token before the last, vLLM to the last
        room = len(ids) - tokens - (info.speculates == "sglang")
        for count in range(1, min(room, MOST_LOOKAHEAD) + 1):
            if self._index.holds(worker, end_key(last, ids[tokens : tokens + count])):
                self._ahead.add(worker)
                return tokens
        return tokens - info.block_size

    def kept_back(
        self, worker: WorkerId, info: EngineInfo, keys: Sequence[BlockKey], promised: int, unit: int
    ) -> int:
        """Tokens of a last block that it says it holds, and that was not promised."""
        if self._is_trusted(worker):
            return 0
        held = self._index.held_depth(worker, keys[: (promised + info.block_size) // unit]) * unit
        return info.block_size if held == promised + info.block_size else 0

    def on_trust(self, worker: WorkerId, info: EngineInfo) -> int:
        """Tokens of a last block that is promised because others were delivered."""
        return info.block_size if self._is_trusted(worker) else 0

    def told(self, worker: WorkerId, delivered: bool) -> None:
        """Whether a last block that was kept back, or promised on trust, was delivered."""
        self._delivered[worker] = self._delivered.get(worker, 0) + 1 if delivered else 0

    def _is_trusted(self, worker: WorkerId) -> bool:
        return self._delivered.get(worker, 0) >= TRUSTED_AFTER
