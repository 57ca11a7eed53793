"""Tokens to text as they come, and stop strings in that text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Enough prompt for the decoder to know what precedes the first new token (a leading space, half a character)
_CONTEXT_TOKENS = 6


class Detokenizer:
    """Text of one sequence, token by token. Bytes of a character that is not complete are held back, and
    dropped if the sequence ends there, as vLLM does."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = DecodeStream(
            ids=list(prompt[-_CONTEXT_TOKENS:]), skip_special_tokens=skip_special_tokens
        )

    def step(self, token_id: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception:  # noqa: BLE001  (the bindings raise a bare Exception)
            # Invalid bytes can make the decoded text shrink, and the stream refuses that from then on
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return self._stream.step(self._tokenizer, token_id) or ""


class StopScanner:
    """Finds the stop string that completes first. Text that may be the start of one is held back, so that a
    client never sees a part of it, however the text is cut into chunks."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text that may go out, and the stop string that ends it, if any.

        While not `armed` (fewer tokens than `min_tokens`), stop strings that end in `text` are plain text.
        """
        if not self._stops:
            return text, None
        before = len(self._held)
        self._held += text
        if armed and (found := self._first(before)) is not None:
            stop, start = found
            released = self._held[: start + len(stop) if self._include else start]
            self._held = ""
            return released, stop
        keep = self._possible_start()
        released = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return released, None

    def flush(self) -> str:
        """What was held back, once nothing more will come."""
        held, self._held = self._held, ""
        return held

    def _first(self, before: int) -> tuple[str, int] | None:
        best: tuple[str, int] | None = None
        for stop in self._stops:
            start = self._held.find(stop, max(0, before - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[1] + len(best[0])):
                best = (stop, start)
        return best

    def _possible_start(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0
