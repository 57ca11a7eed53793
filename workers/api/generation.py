"""From a body to an answer, as a list of steps: completions, chats, and what becomes a chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from gateway.prompt.base import Endpoint
from gateway.types import CacheScope
from workers.api.answer import Answer, AnswerInfo, Json, Outcome
from workers.api.chat_answer import ChatAnswer
from workers.api.choice import Choice, Delta, Generates, run
from workers.api.completion_answer import CompletionAnswer
from workers.api.errors import ApiError
from workers.api.http import EventStream, answer_unless_client_leaves, read
from workers.api.merge import merge
from workers.api.models import ServedModels
from workers.api.prompts import Prompts
from workers.api.sampling import asked_logprobs, check_output_length, sampling_params
from workers.api.schema import ChatBody, CompletionBody, GenerationBody, check_chat, check_completion
from workers.api.text import Detokenizer, StopScanner
from workers.api.usage import UsageCount
from workers.metrics import EngineMetrics
from workers.types import EngineRequest, SamplingParams


@dataclass(slots=True)
class Generation:
    """`now` is the wall clock in seconds, `new_id` makes ids for requests without one."""

    engine: Generates
    prompts: Prompts
    models: ServedModels
    metrics: EngineMetrics
    block_size: int
    fingerprint: str
    report_cached: bool
    now: Callable[[], float]
    new_id: Callable[[], str]
    in_flight: int = 0

    async def completions(self, request: Request) -> Response:
        body = await read(request, CompletionBody)
        name, scope = self.models.resolve(body.model, body.cache_salt)
        check_completion(body)
        check_output_length(body, self.models.max_model_len)
        prompts = await self.prompts.of_completion(body)
        info = self._info(body, self._id(request, body, "cmpl"), name)
        answer = CompletionAnswer(info, body, prompts, self.prompts.echoes(body, prompts))
        return await self._answer(request, body, info.id, scope, prompts, answer)

    async def chat(self, request: Request) -> Response:
        body = await read(request, ChatBody)
        return await self.answer_chat(
            request, body, lambda info, prompt: ChatAnswer(info, body, prompt, self.block_size)
        )

    async def answer_chat(
        self,
        request: Request,
        body: ChatBody,
        make_answer: Callable[[AnswerInfo, tuple[int, ...]], Answer],
        endpoint: Endpoint = Endpoint.CHAT,
        answer_id: str | None = None,
    ) -> Response:
        """`endpoint`: whose body the chat was made of. Raises ApiError."""
        name, scope = self.models.resolve(body.model, body.cache_salt)
        check_chat(body)
        check_output_length(body, self.models.max_model_len)
        prompt = await self.prompts.of_chat(body, endpoint)
        info = self._info(body, answer_id or self._id(request, body, "chatcmpl"), name)
        return await self._answer(request, body, info.id, scope, [prompt], make_answer(info, prompt))

    def _id(self, request: Request, body: GenerationBody, prefix: str) -> str:
        return f"{prefix}-{request.headers.get('x-request-id') or body.request_id or self.new_id()}"

    def _info(self, body: GenerationBody, answer_id: str, model: str) -> AnswerInfo:
        return AnswerInfo(
            id=answer_id,
            created=int(self.now()),
            model=model,
            fingerprint=self.fingerprint,
            text_of=self.prompts.token_text(as_id=bool(body.return_tokens_as_token_ids)),
            report_cached=self.report_cached,
        )

    async def _answer(
        self,
        request: Request,
        body: GenerationBody,
        answer_id: str,
        scope: CacheScope,
        prompts: Sequence[tuple[int, ...]],
        answer: Answer,
    ) -> Response:
        asked_logprobs(body)
        choices = self._choices(body, answer_id, scope, prompts)
        usage = UsageCount([len(prompt) for prompt in prompts], body.choices)
        if body.stream:
            return EventStream(self._events(choices, answer, usage), named=answer.names_events)
        return await answer_unless_client_leaves(request, self._full(choices, answer, usage))

    def _choices(
        self, body: GenerationBody, answer_id: str, scope: CacheScope, prompts: Sequence[tuple[int, ...]]
    ) -> list[Choice]:
        choices: list[Choice] = []
        for prompt in prompts:
            params = sampling_params(body, prompt_len=len(prompt), max_model_len=self.models.max_model_len)
            for n in range(body.choices):
                index = len(choices)
                request = EngineRequest(
                    request_id=f"{answer_id}-{index}",
                    prompt_token_ids=prompt,
                    sampling=_nth(params, n),
                    scope=scope,
                )
                detokenizer = Detokenizer(
                    self.prompts.tokenizer, prompt, skip_special_tokens=body.skip_special_tokens is not False
                )
                include_stop = bool(body.include_stop_str_in_output)
                stops = StopScanner(body.stops, include=include_stop)
                choices.append(Choice(index, request, detokenizer, stops, include_stop))
        return choices

    async def _deltas(self, choices: Sequence[Choice]) -> AsyncGenerator[Delta, None]:
        self.in_flight += 1
        try:
            runs = [self.metrics.observe(choice.request, run(self.engine, choice)) for choice in choices]
            async with aclosing(merge(runs)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.in_flight -= 1

    async def _events(
        self, choices: Sequence[Choice], answer: Answer, usage: UsageCount
    ) -> AsyncGenerator[Json, None]:
        try:
            async with aclosing(self._deltas(choices)) as deltas:
                async for delta in deltas:
                    usage.add(delta)
                    for chunk in answer.chunks(delta):
                        yield chunk
        except ApiError as error:
            yield answer.broken_off(error)
            return
        for chunk in answer.ending(usage):
            yield chunk

    async def _full(self, choices: Sequence[Choice], answer: Answer, usage: UsageCount) -> Json:
        outcomes = [Outcome() for _ in choices]
        async with aclosing(self._deltas(choices)) as deltas:
            async for delta in deltas:
                usage.add(delta)
                outcomes[delta.index].add(delta)
        return answer.full(outcomes, usage)


def _nth(params: SamplingParams, n: int) -> SamplingParams:
    """The n-th choice of one prompt: with a seed of its own, or all would be alike."""
    return params if params.seed is None or n == 0 else replace(params, seed=params.seed + n)
