"""From a body to the token ids that the model is given. Here every prompt is encoded whole: no segment cache,
so that this engine is an independent witness of what the gateway computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from gateway.prompt.base import Endpoint, PromptError, PromptRequest
from gateway.prompt.content import has_media
from workers.api.errors import BadRequest, bad_value
from workers.api.logprobs import TokenText
from workers.api.sampling import asked_tokens
from workers.api.schema import ChatBody, CompletionBody, GenerationBody, TokenizeBody, check_messages

# Below this, handing text to a thread costs more than encoding it
_INLINE_CHARS = 8192


RenderChat = Callable[[PromptRequest], str]
"""A chat → the text that the model's template makes of it. Raises PromptError."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """All prompts come back bounded by `max_model_len` and inside the vocabulary, or BadRequest is raised."""

    tokenizer: Tokenizer
    render_chat: RenderChat
    vocab_size: int
    max_model_len: int

    async def of_completion(self, body: CompletionBody) -> list[tuple[int, ...]]:
        add_special = body.add_special_tokens is not False
        return [await self._tokens(prompt, body, add_special) for prompt in _split(body.prompt)]

    async def of_chat(self, body: ChatBody, endpoint: Endpoint = Endpoint.CHAT) -> tuple[int, ...]:
        """`endpoint`: the API that the chat was made of; some templates are given another chat for it."""
        return await self._tokens(self._render(body, endpoint), body, bool(body.add_special_tokens))

    async def to_tokenize(self, body: TokenizeBody) -> list[int]:
        """Of any length: /tokenize measures what would not fit, too."""
        if body.messages is not None:
            check_messages(body.messages)
            return await self.encode_text(self._render(body), bool(body.add_special_tokens))
        if body.prompt is None:
            raise BadRequest("Either prompt or messages must be provided.", param="prompt")
        return await self.encode_text(body.prompt, body.add_special_tokens is not False)

    def echoes(self, body: CompletionBody, prompts: Sequence[Sequence[int]]) -> list[str]:
        """The prompts' texts that `echo` repeats: none where token ids are asked for, as in vLLM."""
        if not body.echo or body.return_token_ids:
            return [""] * len(prompts)
        texts = _split(body.prompt)
        return [
            text if isinstance(text, str) else self.tokenizer.decode(ids, skip_special_tokens=False)
            for text, ids in zip(texts, prompts, strict=True)
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        self._check_vocabulary(tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def token_names(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary spells them (``Ġthere``)."""
        return [self.tokenizer.id_to_token(token) or "" for token in tokens]

    def token_text(self, *, as_id: bool) -> TokenText:
        """How log-probabilities spell a token."""
        if as_id:
            return "token_id:{}".format
        return lambda token: self.tokenizer.decode([token], skip_special_tokens=False)

    async def encode_text(self, text: str, add_special_tokens: bool, keep: int | None = None) -> list[int]:
        """`keep` tokens from the end of the text, the special ones at the edges included; None keeps all."""
        encode = partial(self._encode_text, text, add_special_tokens, keep)
        return encode() if len(text) <= _INLINE_CHARS else await asyncio.to_thread(encode)

    def _encode_text(self, text: str, add_special_tokens: bool, keep: int | None) -> list[int]:
        if keep is None:
            whole: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            return whole
        edges = self.tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
        if keep < edges:
            raise BadRequest(
                "truncate_prompt_tokens leaves no room for the special tokens", param="truncate_prompt_tokens"
            )
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(keep - edges, direction="left")
        ids: list[int] = self.tokenizer.post_process(encoding, add_special_tokens=add_special_tokens).ids
        return ids

    def _render(self, body: ChatBody | TokenizeBody, endpoint: Endpoint = Endpoint.CHAT) -> str:
        if body.chat_template is not None:
            raise BadRequest("A chat template in the request is not trusted.", param="chat_template")
        messages = body.messages or []
        if has_media(messages):
            raise BadRequest("This model takes text only.", param="messages")
        request = PromptRequest(
            endpoint, body.model or "", messages=messages, template_args=template_arguments(body)
        )
        try:
            return self.render_chat(request)
        except PromptError as error:
            raise BadRequest(error.message, param=error.param) from error

    async def _tokens(
        self, prompt: str | Sequence[int], body: GenerationBody, add_special_tokens: bool
    ) -> tuple[int, ...]:
        limit = _truncation(body, self.max_model_len)
        is_text = isinstance(prompt, str)
        if isinstance(prompt, str):
            # without a side it is the tokenizer that cuts, and it keeps its special tokens
            keep = limit if body.truncation_side is None else None
            prompt = await self.encode_text(prompt, add_special_tokens, keep)
        if limit is not None and len(prompt) > limit:
            prompt = prompt[:limit] if body.truncation_side == "right" else prompt[len(prompt) - limit :]
        return self._bounded(prompt, is_text)

    def _check_vocabulary(self, tokens: Sequence[int]) -> None:
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            stray = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise BadRequest(f"Token id {stray} is out of vocabulary")

    def _bounded(self, tokens: Sequence[int], is_text: bool) -> tuple[int, ...]:
        self._check_vocabulary(tokens)
        if not tokens:
            raise BadRequest("The decoder prompt cannot be empty", param="prompt")
        if len(tokens) > self.max_model_len:
            # vLLM stops encoding a text one token beyond the limit, and says so
            count = self.max_model_len + 1 if is_text else len(tokens)
            raise BadRequest(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt "
                f"contains {'at least ' if is_text else ''}{count} input tokens, which exceeds this limit "
                "even without any output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={count})",
                param="input_tokens",
            )
        return tuple(tokens)


def template_arguments(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """What the template sees beside the messages, as `PromptRequest.template_args` names it."""
    arguments: dict[str, Any] = {
        "tools": body.tools,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message or None,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    if isinstance(body, ChatBody):
        arguments |= {
            "documents": body.documents,
            "tool_choice": body.tool_choice,
            "reasoning_effort": body.reasoning_effort,
        }
    return {name: value for name, value in arguments.items() if value is not None}


def _split(prompt: str | Sequence[int | str | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a request: one text, texts, one list of token ids, or lists of them."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("You must pass at least one prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    rest = [item for item in prompt if not isinstance(item, int)]
    if ids or len({type(item) for item in rest}) != 1:
        raise BadRequest(
            "prompt must be a text, a list of texts, token ids, or lists of them", param="prompt"
        )
    return rest


def _truncation(body: GenerationBody, max_model_len: int) -> int | None:
    """Tokens that a longer prompt is cut to; None: it is not cut."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return None
    if not -1 <= limit <= max_model_len:
        raise bad_value(
            f"truncate_prompt_tokens must be in [-1, {max_model_len}], got {limit}.",
            "truncate_prompt_tokens",
            limit,
        )
    if limit >= 0:
        return limit
    # as long as the context allows, with a token's room for output where output has a bound
    return max_model_len - 1 if asked_tokens(body)[0] else max_model_len
