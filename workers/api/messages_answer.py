"""Answers of /v1/messages, field by field as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from workers.api.answer import AnswerInfo, Json, Outcome
from workers.api.choice import Delta
from workers.api.errors import ApiError
from workers.api.usage import UsageCount
from workers.types import FinishReason

_STOP_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens"}


def error_body(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass(slots=True)
class MessagesAnswer:
    """One text, in one block. `prompt_tokens` is all of the prompt, cached or not."""

    names_events: ClassVar[bool] = True
    info: AnswerInfo
    prompt_tokens: int
    block_size: int
    _has_begun: bool = field(default=False)
    _has_text: bool = field(default=False)
    _end: Json = field(default_factory=dict)

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if not self._has_begun:
            self._has_begun = True
            # what is cached is told at the end
            usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
            yield {
                "type": "message_start",
                "message": {**self._message([]), **_end(None, None), "usage": usage},
            }
        if delta.text:
            if not self._has_text:
                self._has_text = True
                yield {"type": "content_block_start", "content_block": _text_block(""), "index": 0}
            yield {
                "type": "content_block_delta",
                "delta": {"type": "text_delta", "text": delta.text},
                "index": 0,
            }
        self._end = _end(delta.finish_reason, delta.stop_reason)

    def ending(self, usage: UsageCount) -> Iterator[Json]:
        if self._has_text:
            yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": self._end, "usage": self._usage(usage)}
        yield {"type": "message_stop"}

    def broken_off(self, error: ApiError) -> Json:
        return error_body("internal_error", error.message)

    def full(self, outcomes: Sequence[Outcome], usage: UsageCount) -> Json:
        (outcome,) = outcomes
        end = _end(outcome.finish_reason, outcome.stop_reason)
        return {
            **self._message([_text_block(outcome.text)]),
            **{name: value for name, value in end.items() if value is not None},
            "usage": self._usage(usage),
        }

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.info.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.info.model,
        }

    def _usage(self, usage: UsageCount) -> Json:
        """`input_tokens` are those that the cache had no part in: neither read from it nor left in it."""
        if not self.info.report_cached:
            return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        created, cached = usage.created_tokens(self.block_size), usage.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens - cached - created,
            "output_tokens": usage.completion_tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": cached,
        }


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def _end(finish_reason: FinishReason | None, stop_reason: int | str | None) -> Json:
    if finish_reason == "stop" and isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    reason = None if finish_reason is None else _STOP_REASONS.get(finish_reason)
    return {"stop_reason": reason, "stop_sequence": None}
