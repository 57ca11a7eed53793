"""Answers of /v1/responses, field by field as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from workers.api.answer import AnswerInfo, Json, Outcome
from workers.api.choice import Delta
from workers.api.errors import ApiError
from workers.api.responses_schema import ResponsesBody
from workers.api.usage import UsageCount
from workers.types import SamplingParams

_TOOL = dict.fromkeys(
    ("name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading", "description",
     "output_schema")
)  # fmt: skip
_REASONING = dict.fromkeys(("context", "effort", "generate_summary", "mode", "summary"))


@dataclass(slots=True)
class ResponsesAnswer:
    """One message with one text. `params` are those in effect, which the answer repeats; `item_id` is the
    message's."""

    names_events: ClassVar[bool] = True
    info: AnswerInfo
    body: ResponsesBody
    params: SamplingParams
    block_size: int
    item_id: str
    _count: int = field(default=0)
    _outcome: Outcome = field(default_factory=Outcome)
    _has_begun: bool = field(default=False)
    _has_text: bool = field(default=False)

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if not self._has_begun:
            self._has_begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response=self._response("in_progress", []))
        self._outcome.add(delta)
        if not delta.text:
            return
        if not self._has_text:
            self._has_text = True
            yield self._event(
                "response.output_item.added", item=self._message("in_progress", []), output_index=0
            )
            yield self._event("response.content_part.added", **self._place, part=_text_part("", []))
        yield self._event("response.output_text.delta", **self._place, delta=delta.text, logprobs=[])

    def ending(self, usage: UsageCount) -> Iterator[Json]:
        text = self._outcome.text
        output: list[Json] = []
        if self._has_text:
            output = [self._message("completed", [_text_part(text, None)])]
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=_text_part(text, None))
            yield self._event("response.output_item.done", item=output[0], output_index=0)
        whole = self._response(_status(self._outcome), output, self._usage(usage))
        yield self._event("response.completed", response=whole)

    def broken_off(self, error: ApiError) -> Json:
        return self._event("error", code=str(error.status), message=error.message, param=error.param)

    def full(self, outcomes: Sequence[Outcome], usage: UsageCount) -> Json:
        (outcome,) = outcomes
        content = [_text_part(outcome.text, None)] if outcome.text else []
        message = self._message("completed", content)
        return self._response(_status(outcome), [message], self._usage(usage))

    def _event(self, kind: str, **fields: object) -> Json:
        event = {"type": kind, "sequence_number": self._count, **fields}
        self._count += 1
        return dict(sorted(event.items()))

    @property
    def _place(self) -> Json:
        return {"item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _message(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _response(self, status: str, output: list[Json], usage: Json | None = None) -> Json:
        body, params = self.body, self.params
        return {
            "id": self.info.id,
            "created_at": self.info.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self.info.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": params.temperature,
            "tool_choice": body.tool_choice or ("auto" if body.tools else "none"),
            "tools": [_TOOL | tool for tool in body.tools or ()],
            "top_p": params.top_p,
            "background": False,
            "max_output_tokens": params.max_tokens,
            "max_tool_calls": body.max_tool_calls,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None if body.reasoning is None else _REASONING | body.reasoning,
            "service_tier": body.service_tier,
            "status": status,
            "text": None if body.text is None else {"format": None, "verbosity": None} | body.text,
            "top_logprobs": None,
            "truncation": body.truncation,
            "usage": usage,
            "user": body.user,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _usage(self, usage: UsageCount) -> Json:
        prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": usage.created_tokens(self.block_size),
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": completion,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + completion,
        }


def _text_part(text: str, logprobs: list[Json] | None) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _status(outcome: Outcome) -> str:
    return "incomplete" if outcome.finish_reason == "length" else "completed"
