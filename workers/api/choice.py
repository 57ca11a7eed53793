"""One generated sequence as an API sees it: text beside token ids, ended by a stop string where one comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from workers.api.errors import BadRequest, EngineFailed
from workers.api.text import Detokenizer, StopScanner
from workers.async_engine import EngineDead
from workers.scheduler import RequestRefused
from workers.types import EngineRequest, FinishReason, TokenLogprobs, TokenOutput


class Generates(Protocol):
    """What the API needs of the engine to answer a request.

    `generate` yields one output per token and ends after the one with a finish reason. Closing the iterator
    early, or cancelling the task that waits for it, aborts the sequence at once.
    """

    def generate(self, request: EngineRequest) -> AsyncGenerator[TokenOutput, None]: ...


@dataclass(frozen=True, slots=True)
class Delta:
    """What one engine output adds to one choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    cached_tokens: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for an end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A request to the engine and how its tokens become text. `index` is the number of its choice."""

    index: int
    request: EngineRequest
    detokenizer: Detokenizer
    stops: StopScanner
    include_stop: bool


async def run(engine: Generates, choice: Choice) -> AsyncGenerator[Delta, None]:
    """Deltas of `choice`, the last one with a finish reason. The sequence is aborted if this is closed.

    Raises BadRequest for what the engine can never serve, EngineFailed when it dies.
    """
    seen = 0
    try:
        async with aclosing(engine.generate(choice.request)) as outputs:
            async for output in outputs:
                seen += output.token_id is not None
                delta = _delta(choice, output, seen)
                yield delta
                if delta.finish_reason is not None:
                    return
    except RequestRefused as error:
        raise BadRequest(str(error)) from error
    except EngineDead as error:
        raise EngineFailed(str(error)) from error


def _delta(choice: Choice, output: TokenOutput, seen: int) -> Delta:
    text, stop = "", None
    # the token that stops a sequence is reported as a token, but is no text unless asked for
    is_stop_token = output.finish_reason == "stop" and not choice.include_stop
    if output.token_id is not None and not is_stop_token:
        piece = choice.detokenizer.step(output.token_id)
        text, stop = choice.stops.push(piece, armed=seen > choice.request.sampling.min_tokens)
    delta = Delta(
        index=choice.index,
        text=text,
        token_ids=() if output.token_id is None else (output.token_id,),
        cached_tokens=output.num_cached_tokens,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
    if stop is not None:
        return replace(delta, finish_reason="stop", stop_reason=stop)
    if output.finish_reason is not None:
        return replace(delta, text=text + choice.stops.flush())
    return delta
