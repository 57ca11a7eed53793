"""Token counts of one answer, summed over its prompts and choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.api.choice import Delta


@dataclass(slots=True)
class UsageCount:
    """`cached_tokens` counts each prompt once: what its first choice found, however many choices follow.
    (vLLM reports the last prompt's figure alone when a request carries several.)"""

    prompt_lens: Sequence[int]
    choices_per_prompt: int
    completion_tokens: int = 0
    _cached: dict[int, int] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if delta.index % self.choices_per_prompt == 0:
            self._cached[delta.index] = delta.cached_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lens)

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values())

    def created_tokens(self, block_size: int) -> int:
        """Tokens of a single prompt in blocks that this request added to the cache."""
        return self.prompt_tokens // block_size * block_size - self.cached_tokens

    def body(self, details: dict[str, Any] | None) -> dict[str, Any]:
        """The `usage` object; `details` is None where the engine is configured to say nothing."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
        }
