"""Anthropic's Messages API: a body becomes a chat, and the chat's answer a message."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.prompt.base import Endpoint
from workers.api.errors import ApiError
from workers.api.generation import Generation
from workers.api.http import json_response, read
from workers.api.messages_answer import MessagesAnswer, error_body
from workers.api.messages_chat import chat_of, prompt_chat
from workers.api.messages_schema import CountTokensBody, MessagesBody, check_body


@dataclass(frozen=True, slots=True)
class Messages:
    """Errors have this API's shape, but for bodies that can't be read: vLLM tells of those as everywhere."""

    generation: Generation

    async def create(self, request: Request) -> Response:
        body = await read(request, MessagesBody)
        check_body(body)
        block_size = self.generation.block_size
        try:
            return await self.generation.answer_chat(
                request,
                chat_of(body),
                lambda info, prompt: MessagesAnswer(info, len(prompt), block_size),
                Endpoint.MESSAGES,
            )
        except ApiError as error:
            return _refused(error)

    async def count_tokens(self, request: Request) -> Response:
        body = await read(request, CountTokensBody)
        check_body(body)
        try:
            self.generation.models.resolve(body.model, None)
            prompt = await self.generation.prompts.of_chat(prompt_chat(body), Endpoint.MESSAGES)
        except ApiError as error:
            return _refused(error)
        count = len(prompt)
        return json_response({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _refused(error: ApiError) -> Response:
    return json_response(error_body(error.type, error.message), error.status)
