"""The second source: the engine's own `/tokenize`, for models whose files are not here."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import ConfigError, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from gateway.prompt.base import NotTokenised, PromptRequest, TokenPrompt, too_long
from gateway.prompt.content import has_media
from gateway.prompt.engine_choice import AskedEngine, EngineChoice
from gateway.types import AskEngine, Clock

_STEP = 65_536
"""Bytes and tokens that are looked at between two turns of the event loop."""


class _Answer(msgspec.Struct):
    tokens: list[int]


@dataclass(slots=True)
class _Call:
    """One call to an engine, and how many requests wait for its answer."""

    task: asyncio.Task[array[int] | NotTokenised]
    waiters: int = 0


class EngineEncoder:
    """Asks an engine, with a deadline, and remembers its answers by content.

    Requests for the same tokens share one call. At most `concurrency` calls are under way; up to
    `most_waiting` others wait for their turn, as long as an answer may take (`deadline`). A tokenizer service
    that is slow or down must not slow requests: who finds no place, or waits in vain, is routed by load.
    `base_urls` gives the engines that may be asked, any of which serves this model. One that fails rests (see
    `EngineChoice`; `clock` is in seconds), and another is asked in the time that is left.
    Nobody is asked about a prompt of more than `most_bytes`: it could not be answered in time, and would
    count as a failure.
    """

    name = "engine"
    exact = True

    def __init__(
        self,
        ask: AskEngine,
        base_urls: Callable[[], Sequence[str]],
        *,
        clock: Clock,
        deadline: float = 0.5,
        concurrency: int = 8,
        most_waiting: int = 256,
        cache_bytes: int = 32 * 1024 * 1024,
        rest: float = 1.0,
        max_rest: float = 30.0,
        most_bytes: int = 1_000_000,
    ) -> None:
        self._ask_engine = ask
        self._engines = EngineChoice(base_urls, clock=clock, rest=rest, max_rest=max_rest)
        self._deadline = deadline
        self._turns = asyncio.Semaphore(concurrency)
        self._most_calls = concurrency + most_waiting
        self._calls: dict[bytes, _Call] = {}
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._room = cache_bytes
        self._most_bytes = most_bytes

    def __repr__(self) -> str:
        return f"<EngineEncoder {len(self._cache)} answers, {self._engines!r}>"

    @property
    def resting(self) -> bool:
        """Whether requests are routed by load for now, because all engines' tokenizers failed lately."""
        return self._engines.resting

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        # the engine would count a truncated or illustrated prompt in ways that /tokenize does not tell
        if request.truncate_prompt_tokens is not None:
            return NotTokenised("truncated", "/tokenize does not tell how the engine truncates a prompt")
        if has_media(request.messages or ()):
            return NotTokenised("media", "/tokenize does not tell how the engine counts images and sounds")
        if request.messages is not None:
            return await self._encode_all([_chat_body(request)])
        if request.prompts is None:
            return []
        return await self._encode_all(
            [
                {"model": request.model, "prompt": prompt, "add_special_tokens": request.add_special_tokens}
                if isinstance(prompt, str)
                else prompt
                for prompt in request.prompts
            ]
        )

    async def close(self) -> None:
        """Nothing of it stays open."""

    async def _encode_all(self, prompts: Sequence[dict[str, Any] | Sequence[int]]) -> Sequence[TokenPrompt]:
        encoded: list[TokenPrompt] = []
        done = 0
        for prompt in prompts:
            if done > _STEP:
                # others have their turn
                await asyncio.sleep(0)
                done = 0
            if isinstance(prompt, dict):
                try:
                    content = msgspec.json.encode(prompt)
                except UnicodeEncodeError:
                    return []
                done += len(content)
                if len(content) > self._most_bytes:
                    encoded.append(too_long(len(content)))
                    continue
                tokens = await self._tokens(content)
                if isinstance(tokens, NotTokenised):
                    return tokens
            elif (ids := _token_ids(prompt)) is not None:
                tokens = ids
                done += len(ids)
            else:
                return []
            encoded.append(TokenPrompt(tokens, len(tokens)))
        return encoded

    async def _tokens(self, content: bytes) -> array[int] | NotTokenised:
        key = hashlib.blake2b(content, digest_size=16).digest()
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return known
        call = self._calls.get(key)
        if call is None:
            if self.resting:
                return self._at_rest()
            if len(self._calls) >= self._most_calls:
                return NotTokenised(
                    "busy", f"{len(self._calls)} prompts are before it at the engine's tokenizer"
                )
            call = self._calls[key] = _Call(asyncio.create_task(self._in_turn(key, content)))
        call.waiters += 1
        try:
            # one that leaves must not take the answer from the others
            return await asyncio.shield(call.task)
        finally:
            call.waiters -= 1
            if call.waiters == 0:
                call.task.cancel()
                if self._calls.get(key) is call:
                    del self._calls[key]

    async def _in_turn(self, key: bytes, content: bytes) -> array[int] | NotTokenised:
        try:
            async with asyncio.timeout(self._deadline):
                await self._turns.acquire()
        except TimeoutError:
            return NotTokenised("busy", f"the engine's tokenizer had no turn in {self._deadline:g} s")
        try:
            # it may have failed meanwhile
            tokens = self._at_rest() if self.resting else await self._ask(content)
        finally:
            self._turns.release()
        if not isinstance(tokens, NotTokenised):
            self._remember(key, tokens)
        return tokens

    async def _ask(self, content: bytes) -> array[int] | NotTokenised:
        """Of one engine. Where it fails, or says nothing for half the time, of another one too."""
        engine = self._engines.next()
        if engine is None:
            return NotTokenised("no_worker", "no worker is ready to be asked for tokens")
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline
        calls = [self._begin(engine, content, self._deadline)]
        first = calls[0]
        try:
            await asyncio.wait(calls, timeout=self._deadline / 2)
            silent = not first.done()
            # a tokenizer service that has no turn to spare is not asked twice
            if not _answered(first) and not (silent and self._turns.locked()):
                other = self._engines.next(but=engine)
                left = end - loop.time()
                if other is not None and left > 0:
                    async with self._turns if silent else nullcontext():
                        calls.append(self._begin(other, content, left, hurried=silent))
                        tokens = await _first_answer(calls)
                    if not first.done():
                        self._engines.failed(engine, "/tokenize said nothing while another engine answered")
                    return tokens
            return await first
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _begin(
        self, engine: AskedEngine, content: bytes, seconds: float, *, hurried: bool = False
    ) -> asyncio.Task[array[int] | NotTokenised]:
        """`hurried`: it is not the engine's failure where it does not answer in `seconds`."""

        def ended(_: asyncio.Task[array[int] | NotTokenised]) -> None:
            engine.under_way -= 1

        engine.under_way += 1
        call = asyncio.create_task(self._call(engine, content, seconds, hurried=hurried))
        # a task that is cancelled before it began runs none of its own code
        call.add_done_callback(ended)
        return call

    async def _call(
        self, engine: AskedEngine, content: bytes, seconds: float, *, hurried: bool
    ) -> array[int] | NotTokenised:
        try:
            answer = await self._ask_engine(engine.url, "/tokenize", timeout=seconds, content=content)
            if 400 <= answer.status < 500 and answer.status not in (404, 405, 429):
                # this prompt is at fault, not the service
                self._engines.answered(engine)
                return NotTokenised("refused", f"/tokenize answers {answer.status} to this prompt")
            if not answer.good:
                raise UpstreamProtocolError(f"/tokenize answers {answer.status}")
            tokens = array("I", msgspec.json.decode(answer.body, type=_Answer).tokens)
        except (UpstreamError, ConfigError, msgspec.DecodeError, OverflowError) as error:
            reason = f"{error}" or type(error).__name__
            if not (hurried and isinstance(error, UpstreamTimeout)):
                self._engines.failed(engine, reason)
            return NotTokenised("failed", f"the engine's /tokenize failed: {reason}")
        self._engines.answered(engine)
        return tokens

    def _at_rest(self) -> NotTokenised:
        return NotTokenised("resting", f"the engine's /tokenize failed a moment ago: {self._engines.reason}")

    def _remember(self, key: bytes, tokens: array[int]) -> None:
        self._cache[key] = tokens
        self._room -= _entry_bytes(tokens)
        while self._room < 0:
            _, dropped = self._cache.popitem(last=False)
            self._room += _entry_bytes(dropped)


def _answered(call: asyncio.Task[array[int] | NotTokenised]) -> bool:
    """Whether there is an answer that another engine would give too."""
    if not call.done():
        return False
    tokens = call.result()
    return not isinstance(tokens, NotTokenised) or tokens.kind != "failed"


async def _first_answer(
    calls: Sequence[asyncio.Task[array[int] | NotTokenised]],
) -> array[int] | NotTokenised:
    """The first call's failure, where all fail."""
    waiting = set(calls)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for call in done:
            if _answered(call):
                return call.result()
    return calls[0].result()


def _entry_bytes(tokens: array[int]) -> int:
    return tokens.itemsize * len(tokens) + 256


def _token_ids(prompt: Sequence[int]) -> array[int] | None:
    try:
        return array("I", prompt)
    except (TypeError, OverflowError):
        return None


def _chat_body(request: PromptRequest) -> dict[str, Any]:
    args = request.template_args
    kwargs = dict(args.get("chat_template_kwargs", {}))
    effort = args.get("reasoning_effort")
    # /tokenize has no fields for these, but its template sees whatever stands here
    if "documents" in args:
        kwargs["documents"] = args["documents"]
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        kwargs.setdefault("enable_thinking", effort != "none")
    body: dict[str, Any] = {
        "model": request.model,
        "messages": request.messages,
        "add_special_tokens": request.add_special_tokens,
    }
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    for name in ("tools", "chat_template", "add_generation_prompt", "continue_final_message"):
        if name in args:
            body[name] = args[name]
    return body
