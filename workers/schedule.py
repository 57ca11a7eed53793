"""What the scheduler decided for one step, and the two ways to look at it: to compute it, or to time it."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.sequence import SequenceState
from workers.types import StepItem


@dataclass(slots=True)
class Schedule:
    """One step: each sequence with how many tokens it feeds, starting at its `num_computed`. A sequence that
    reads blocks which this same step computes comes after the one that computes them."""

    batch: list[tuple[SequenceState, int]] = field(default_factory=list)

    def items(self) -> list[StepItem]:
        return [
            StepItem(
                request_id=seq.request.request_id,
                tokens=seq.token_ids(seq.num_computed, seq.num_computed + count),
                start=seq.num_computed,
                block_table=seq.blocks,
                sampling=seq.request.sampling,
                samples=seq.num_computed + count == seq.num_tokens,
                output_token_ids=seq.output,
                prompt_len=len(seq.prompt),
                prompt_token_ids=seq.prompt,
            )
            for seq, count in self.batch
        ]

    def shapes(self) -> list[tuple[int, int]]:
        """(tokens fed, tokens before them) of each sequence: what a step's time depends on."""
        return [(count, seq.num_computed) for seq, count in self.batch]
