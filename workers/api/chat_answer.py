"""Answers of /v1/chat/completions, field by field as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from workers.api.answer import AnswerInfo, Json, Outcome
from workers.api.choice import Delta
from workers.api.errors import ApiError
from workers.api.logprobs import chat_logprobs
from workers.api.schema import ChatBody
from workers.api.usage import UsageCount
from workers.types import TokenLogprobs


@dataclass(slots=True)
class ChatAnswer:
    names_events: ClassVar[bool] = False
    info: AnswerInfo
    body: ChatBody
    prompt: Sequence[int]
    block_size: int
    _has_begun: bool = field(default=False)

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if not self._has_begun:
            self._has_begun = True
            yield from self._role_chunks()
        choice: Json = {
            "index": delta.index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs([delta.logprobs] if delta.logprobs else []),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.token_ids if self.body.return_token_ids else None
        chunk = self._chunk(choice)
        if delta.finish_reason is not None and not self.body.include_usage:
            chunk["system_fingerprint"] = self.info.fingerprint
        yield chunk

    def ending(self, usage: UsageCount) -> Iterator[Json]:
        if self.body.include_usage:
            yield self._usage_chunk(usage)

    def broken_off(self, error: ApiError) -> Json:
        return error.body()

    def _usage_chunk(self, usage: UsageCount) -> Json:
        created = usage.created_tokens(self.block_size)
        body = usage.body({"cached_tokens": usage.cached_tokens, "created_cache_tokens": created})
        if not self.info.report_cached:
            del body["prompt_tokens_details"]
        return {**self._chunk(), "usage": body, "system_fingerprint": self.info.fingerprint}

    def full(self, outcomes: Sequence[Outcome], usage: UsageCount) -> Json:
        details = {
            "cached_tokens": usage.cached_tokens,
            "created_cache_tokens": usage.created_tokens(self.block_size),
            "multimodal_tokens": None,
        }
        return {
            "id": self.info.id,
            "object": "chat.completion",
            "created": self.info.created,
            "model": self.info.model,
            "choices": [self._choice(index, outcome) for index, outcome in enumerate(outcomes)],
            "service_tier": None,
            "system_fingerprint": self.info.fingerprint,
            "usage": {
                **usage.body(details if self.info.report_cached else None),
                "completion_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt if self.body.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, outcome: Outcome) -> Json:
        return {
            "index": index,
            "message": {
                "role": self._role,
                "content": outcome.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": self._logprobs(outcome.logprobs),
            "finish_reason": outcome.finish_reason,
            "stop_reason": outcome.stop_reason,
            "token_ids": outcome.token_ids if self.body.return_token_ids else None,
            "routed_experts": None,
        }

    def _role_chunks(self) -> Iterator[Json]:
        for index in range(self.body.choices):
            chunk = self._chunk(
                {
                    "index": index,
                    "delta": {"role": self._role, "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            )
            chunk["prompt_token_ids"] = self.prompt if self.body.return_token_ids else None
            chunk["prompt_text"] = None
            yield chunk

    def _chunk(self, *choices: Json) -> Json:
        return {
            "id": self.info.id,
            "object": "chat.completion.chunk",
            "created": self.info.created,
            "model": self.info.model,
            "choices": choices,
        }

    @property
    def _role(self) -> str:
        if self.body.add_generation_prompt is not False:
            return "assistant"
        return str(self.body.messages[-1]["role"])

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Json | None:
        return chat_logprobs(tokens, self.info.text_of) if self.body.logprobs else None
