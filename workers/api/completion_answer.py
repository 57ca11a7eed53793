"""Answers of /v1/completions, field by field as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from workers.api.answer import AnswerInfo, Json, Outcome
from workers.api.choice import Delta
from workers.api.errors import ApiError
from workers.api.logprobs import completion_logprobs
from workers.api.schema import CompletionBody
from workers.api.usage import UsageCount
from workers.types import TokenLogprobs


@dataclass(slots=True)
class CompletionAnswer:
    """`prompts` and `echoes` (their texts, where asked for) are indexed by prompt: choice // n."""

    names_events: ClassVar[bool] = False
    info: AnswerInfo
    body: CompletionBody
    prompts: Sequence[Sequence[int]]
    echoes: Sequence[str]
    _offsets: dict[int, int] = field(default_factory=dict)
    """Length of the text sent so far, by choice."""

    def chunks(self, delta: Delta) -> Iterator[Json]:
        is_first = delta.index not in self._offsets
        offset = self._offsets.get(delta.index, 0)
        text = self._text(delta.index, delta.text) if is_first else self._generated(delta.text)
        self._offsets[delta.index] = offset + len(text)
        with_ids = bool(self.body.return_token_ids)
        chunk = self._chunk(
            {
                "index": delta.index,
                "text": text,
                "logprobs": self._logprobs([delta.logprobs] if delta.logprobs else [], offset),
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
                "prompt_token_ids": self._prompt(delta.index) if with_ids and is_first else None,
                "token_ids": delta.token_ids if with_ids else None,
            }
        )
        if delta.finish_reason is not None and not self.body.include_usage:
            chunk["system_fingerprint"] = self.info.fingerprint
        yield chunk

    def ending(self, usage: UsageCount) -> Iterator[Json]:
        if self.body.include_usage:
            yield self._usage_chunk(usage)

    def broken_off(self, error: ApiError) -> Json:
        return error.body()

    def _usage_chunk(self, usage: UsageCount) -> Json:
        body = usage.body({"cached_tokens": usage.cached_tokens})
        if not self.info.report_cached:
            del body["prompt_tokens_details"]
        return {**self._chunk(), "usage": body, "system_fingerprint": self.info.fingerprint}

    def full(self, outcomes: Sequence[Outcome], usage: UsageCount) -> Json:
        with_ids = bool(self.body.return_token_ids)
        details = {
            "cached_tokens": usage.cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
        return {
            **self._chunk(),
            "choices": [
                {
                    "index": index,
                    "text": self._text(index, outcome.text),
                    "logprobs": self._logprobs(outcome.logprobs, 0),
                    "finish_reason": outcome.finish_reason,
                    "stop_reason": outcome.stop_reason,
                    "token_ids": outcome.token_ids if with_ids else None,
                    "prompt_logprobs": None,
                    "prompt_token_ids": self._prompt(index) if with_ids else None,
                    "routed_experts": None,
                }
                for index, outcome in enumerate(outcomes)
            ],
            "service_tier": None,
            "system_fingerprint": self.info.fingerprint,
            "usage": {
                **usage.body(details if self.info.report_cached else None),
                "completion_tokens_details": None,
            },
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _chunk(self, *choices: Json) -> Json:
        return {
            "id": self.info.id,
            "object": "text_completion",
            "created": self.info.created,
            "model": self.info.model,
            "choices": choices,
        }

    def _prompt(self, index: int) -> Sequence[int]:
        return self.prompts[index // self.body.choices]

    def _text(self, index: int, generated: str) -> str:
        echo = self.echoes[index // self.body.choices] if self.body.echo else ""
        return echo + self._generated(generated)

    def _generated(self, text: str) -> str:
        # with echo, max_tokens 0 asks for the prompt alone
        return "" if self.body.echo and self.body.max_tokens == 0 else text

    def _logprobs(self, tokens: Sequence[TokenLogprobs], offset: int) -> Json | None:
        if self.body.logprobs is None:
            return None
        return completion_logprobs(tokens, self.info.text_of, text_offset=offset)
