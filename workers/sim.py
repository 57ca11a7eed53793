"""The simulated twin in real time: a Runner that computes nothing and takes as long as a timing model says.
Scheduler, block pool and events are the engine's own (workers/virtual.py is the twin in virtual time)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from gateway.kv.keys import pack_tokens
from gateway.types import Clock
from workers.timing import Timing
from workers.types import Sampled, StepItem

_MIN_SLEEP_S = 0.0005
_CREDIT_S = 0.005


class SimRunner:
    """Next tokens are drawn from a digest of everything before them, so the same prompt is continued alike,
    cached or not, chunked or not.

    What stands in for K/V is a digest a block: of all tokens up to the last one written there. It is read
    through block tables and written through them, so wrong blocks give wrong tokens, as in a real engine.

    `eos_token_ids` come up only where `mean_output_tokens` is set (each token ends a sequence with
    probability 1/mean). Ids below `first_token_id` are never drawn. `time_scale` 0.1 is ten times as fast;
    0 does not sleep.
    """

    def __init__(
        self,
        timing: Timing,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        first_token_id: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
        mean_output_tokens: float | None = None,
        seed: int = 0,
        time_scale: float = 1.0,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._timing = timing
        self._block_size = block_size
        self._words = [t for t in range(first_token_id, vocab_size) if t not in eos_token_ids]
        if not self._words:
            raise ValueError(f"no token of {vocab_size} is left to draw")
        self._mean_output_tokens = mean_output_tokens if eos_token_ids else None
        self._seed = seed
        self._time_scale = time_scale
        self._clock = clock
        self._sleep = sleep
        self._owed = 0.0
        self._before = [0] * num_blocks
        """Digest of all tokens before the block."""
        self._written = [b""] * num_blocks
        """Tokens written into the block so far."""

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        begin = self._clock()
        sampled = [self._next_token(item, self._write(item)) for item in items]
        modelled = self._timing.step_seconds((len(item.tokens), item.start) for item in items)
        self._spend(begin, modelled * self._time_scale)
        return sampled

    def _write(self, item: StepItem) -> int:
        """Put the item's tokens into its blocks; returns the digest of all tokens up to the last."""
        size = self._block_size
        packed = pack_tokens(item.tokens)
        number, offset = divmod(item.start, size)
        end = item.start + len(item.tokens)
        taken = 0
        digest = self._digest(item.block_table[number - 1]) if number else self._seed
        for block in item.block_table[number : -(-end // size)]:
            kept = self._written[block][: offset * 4] if offset else b""
            room = (size - offset) * 4
            self._before[block] = digest
            self._written[block] = kept + packed[taken : taken + room]
            digest = self._digest(block)
            taken += room
            offset = 0
        return digest

    def _digest(self, block: int) -> int:
        return xxh3_64_intdigest(self._written[block], seed=self._before[block])

    def _next_token(self, item: StepItem, digest: int) -> Sampled | None:
        if not item.samples:
            return None
        sampling = item.sampling
        if sampling.seed is not None and sampling.temperature > 0:
            digest ^= xxh3_64_intdigest(b"", seed=sampling.seed % 2**64)
        # two independent draws out of one digest
        draw, word = divmod(xxh3_64_intdigest(b"next", seed=digest), 2**32)
        mean = self._mean_output_tokens
        free_to_end = not sampling.ignore_eos and len(item.output_token_ids) >= sampling.min_tokens
        if mean is not None and free_to_end and draw < 2**32 / mean:
            return Sampled(min(self.eos_token_ids))
        return Sampled(self._words[word % len(self._words)])

    def _spend(self, begin: float, seconds: float) -> None:
        """Sleep off what the model says, less what the step itself took. The rest is carried over, so that
        many short steps last as long as their sum; unused time is not hoarded."""
        owed = self._owed + seconds
        left = owed - (self._clock() - begin)
        if left > _MIN_SLEEP_S:
            self._sleep(left)
        self._owed = max(owed - (self._clock() - begin), -_CREDIT_S) if seconds else 0.0
