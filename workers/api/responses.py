"""OpenAI's Responses API: a body becomes a chat, and the chat's answer a response. None is kept."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from gateway.prompt.base import Endpoint
from workers.api.answer import AnswerInfo
from workers.api.errors import ResponseNotFound
from workers.api.generation import Generation
from workers.api.http import read
from workers.api.responses_answer import ResponsesAnswer
from workers.api.responses_schema import ResponsesBody, chat_of, check_body
from workers.api.sampling import sampling_params


@dataclass(frozen=True, slots=True)
class Responses:
    generation: Generation

    async def create(self, request: Request) -> Response:
        body = await read(request, ResponsesBody)
        self.generation.models.resolve(body.model, None)
        check_body(body)
        chat = chat_of(body)
        own = self.generation

        def answer(info: AnswerInfo, prompt: tuple[int, ...]) -> ResponsesAnswer:
            params = sampling_params(chat, prompt_len=len(prompt), max_model_len=own.models.max_model_len)
            return ResponsesAnswer(info, body, params, own.block_size, item_id=f"msg_{own.new_id()}")

        answer_id = body.request_id or f"resp_{own.new_id()}"
        return await own.answer_chat(request, chat, answer, Endpoint.RESPONSES, answer_id)

    async def of_id(self, request: Request) -> Response:
        raise ResponseNotFound(request.path_params["response_id"])
