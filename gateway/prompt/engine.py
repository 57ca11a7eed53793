"""The second source: the engine's own `/tokenize`, for models whose files are not here."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gateway.errors import ConfigError, UpstreamError, UpstreamProtocolError
from gateway.prompt.base import PromptRequest, TokenPrompt, too_long
from gateway.prompt.content import has_media
from gateway.types import AskEngine, Clock


class _Answer(msgspec.Struct):
    tokens: list[int]


class EngineEncoder:
    """Asks an engine, with a deadline, and remembers its answers by content.

    A tokenizer service that is slow or down must not slow requests: at most `concurrency` calls are under way
    (a request beyond them is routed by load at once), and after a failure nobody asks again for `rest`
    seconds, doubling up to `max_rest` while it keeps failing. `base_urls` gives the engines that may be
    asked, any of which serves this model; `clock` is in seconds. Nobody is asked about a prompt of more than
    `most_bytes`: it could not be answered in time, and would count as a failure.
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
        cache_bytes: int = 32 * 1024 * 1024,
        rest: float = 1.0,
        max_rest: float = 30.0,
        most_bytes: int = 1_000_000,
    ) -> None:
        self._ask_engine = ask
        self._base_urls = base_urls
        self._clock = clock
        self._deadline = deadline
        self._free = concurrency
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._room = cache_bytes
        self._rest = rest
        self._max_rest = max_rest
        self._most_bytes = most_bytes
        self._failures = 0
        self._resting_until = 0.0
        self._turn = 0

    def __repr__(self) -> str:
        return f"<EngineEncoder {len(self._cache)} answers, {self._failures} failures in a row>"

    @property
    def resting(self) -> bool:
        """Whether requests are routed by load for now, because the engine's tokenizer failed lately."""
        return self._clock() < self._resting_until

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        # the engine would count a truncated or illustrated prompt in ways that /tokenize does not tell
        if request.truncate_prompt_tokens is not None or has_media(request.messages or ()):
            return []
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

    async def _encode_all(self, prompts: Sequence[dict[str, Any] | Sequence[int]]) -> list[TokenPrompt]:
        encoded: list[TokenPrompt] = []
        for prompt in prompts:
            if isinstance(prompt, dict):
                try:
                    content = msgspec.json.encode(prompt)
                except UnicodeEncodeError:
                    return []
                if len(content) > self._most_bytes:
                    encoded.append(too_long(len(content)))
                    continue
                tokens = await self._tokens(content)
            else:
                tokens = _token_ids(prompt)
            if tokens is None:
                return []
            encoded.append(TokenPrompt(tokens, len(tokens)))
        return encoded

    async def _tokens(self, content: bytes) -> array[int] | None:
        key = hashlib.blake2b(content, digest_size=16).digest()
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return known
        if self.resting or self._free == 0:
            return None
        self._free -= 1
        try:
            tokens = await self._ask(content)
        finally:
            self._free += 1
        if tokens is not None:
            self._remember(key, tokens)
        return tokens

    async def _ask(self, content: bytes) -> array[int] | None:
        urls = self._base_urls()
        if not urls:
            return None
        self._turn += 1
        url = urls[self._turn % len(urls)]
        try:
            answer = await self._ask_engine(url, "/tokenize", timeout=self._deadline, content=content)
            if 400 <= answer.status < 500 and answer.status not in (404, 405, 429):
                # this prompt is at fault, not the service
                self._failures = 0
                return None
            if not answer.good:
                raise UpstreamProtocolError(f"/tokenize answers {answer.status}")
            tokens = array("I", msgspec.json.decode(answer.body, type=_Answer).tokens)
        except (UpstreamError, ConfigError, msgspec.DecodeError, OverflowError):
            self._failures += 1
            pause = min(self._max_rest, self._rest * 2.0 ** min(self._failures - 1, 16))
            self._resting_until = self._clock() + pause
            return None
        self._failures = 0
        return tokens

    def _remember(self, key: bytes, tokens: array[int]) -> None:
        self._cache[key] = tokens
        self._room -= _entry_bytes(tokens)
        while self._room < 0:
            _, dropped = self._cache.popitem(last=False)
            self._room += _entry_bytes(dropped)


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
