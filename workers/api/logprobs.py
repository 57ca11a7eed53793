"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workers.types import TokenLogprobs

_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

TokenText = Callable[[int], str]


def chat_logprobs(tokens: Sequence[TokenLogprobs], text_of: TokenText) -> dict[str, Any]:
    return {
        "content": [
            {
                **_chat_entry(token.token_id, token.logprob, text_of),
                "top_logprobs": [_chat_entry(other, value, text_of) for other, value in token.top],
            }
            for token in tokens
        ]
    }


def _chat_entry(token_id: int, logprob: float, text_of: TokenText) -> dict[str, Any]:
    text = text_of(token_id)
    return {"token": text, "logprob": max(logprob, _FLOOR), "bytes": list(text.encode())}


def completion_logprobs(
    tokens: Sequence[TokenLogprobs], text_of: TokenText, *, text_offset: int = 0
) -> dict[str, Any]:
    """`text_offset` is where the first of `tokens` begins in the text of its choice, in characters."""
    texts = [text_of(token.token_id) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(text_offset)
        text_offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [max(token.logprob, _FLOOR) for token in tokens],
        "tokens": texts,
        # the chosen token is always listed, also where it is not among the most likely
        "top_logprobs": [
            {text: max(token.logprob, _FLOOR)}
            | {text_of(other): max(value, _FLOOR) for other, value in token.top}
            for token, text in zip(tokens, texts, strict=True)
        ],
    }
