"""Does the gateway count a prompt as the engine does? A mismatch means wrong files or a wrong template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.prompt.base import TokenPrompt


@dataclass(slots=True)
class Parity:
    """Counts for one model; `last_own` and `last_reported` are those of the latest mismatch."""

    matches: int = 0
    mismatches: int = 0
    last_own: int = 0
    last_reported: int = 0

    def observe(self, prompts: Sequence[TokenPrompt], reported: int) -> bool | None:
        """Compares with the engine's `usage.prompt_tokens`, the sum over a request's prompts. None where
        there is nothing to compare: no tokens of our own, or media, whose tokens only the engine counts.
        """
        own = sum(len(prompt.tokens) for prompt in prompts)
        if not prompts or any(prompt.exact_tokens < len(prompt.tokens) for prompt in prompts):
            return None
        if own == reported:
            self.matches += 1
            return True
        self.mismatches += 1
        self.last_own, self.last_reported = own, reported
        return False
