"""The best source: the model's own tokenizer files, read here."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gateway.prompt.base import MOST_CHARS, PromptError, PromptRequest, TokenPrompt, too_long
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.quick import Library
from gateway.prompt.render import MEDIA_MARK, ChatRenderer, RenderOptions
from gateway.prompt.segments import SegmentedTokenizer, TokenPlan
from gateway.prompt.token_length import token_length

_LONG = 256 * 1024
"""Characters, or token ids, from which on a prompt is worked on step by step."""


@dataclass(slots=True)
class _Work:
    """One prompt of a request. `trusted` is how many leading segments stand surely before any media."""

    plan: TokenPlan
    trusted: int | None = None


class LocalEncoder:
    """Renders and tokenises as the engine does. New text of more than `inline_chars` characters (by default
    what takes about a millisecond), and chats of more than `inline_messages` messages, are worked on in a
    thread, so that the event loop keeps serving. `longest` says how many tokens the model's engines take at
    the most, None where one of them does not say. Without a `library` the quickest is taken that gives the
    tokenizer's tokens.
    """

    name = "local"
    exact = True

    def __init__(
        self,
        files: TokenizerFiles,
        options: RenderOptions | None = None,
        *,
        cache_bytes: int = 64 * 1024 * 1024,
        inline_chars: int | None = None,
        inline_messages: int = 256,
        threads: int = 2,
        most_chars: int = MOST_CHARS,
        longest: Callable[[], int | None] = lambda: None,
        library: Library | None = None,
    ) -> None:
        self.files = files
        self._renderer = ChatRenderer(files, options)
        self._segments = SegmentedTokenizer(files.tokenizer, cache_bytes=cache_bytes, library=library)
        self._inline_chars = self._segments.library.inline_chars if inline_chars is None else inline_chars
        self._inline_messages = inline_messages
        self._most_chars = most_chars
        self._longest = longest
        self._token_length = token_length(files.tokenizer)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")

    @property
    def library(self) -> str:
        """Who cuts text into tokens."""
        return self._segments.library.name

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        loop = asyncio.get_running_loop()
        try:
            if len(request.messages or ()) > self._inline_messages:
                texts = await loop.run_in_executor(self._pool, self.texts, request)
            else:
                texts = self.texts(request)
            if sum(map(len, texts)) > _LONG:
                return [await self._encode_long(text, request) for text in texts]
            works = [self._begin(text) for text in texts]
            if sum(work.plan.missing_chars for work in works if isinstance(work, _Work)) > self._inline_chars:
                await loop.run_in_executor(self._pool, self._complete, works)
            else:
                self._complete(works)
            return [self._finish(work, request) for work in works]
        except PromptError:
            return []

    async def _encode_long(self, text: str | Sequence[int], request: PromptRequest) -> TokenPrompt:
        """The same in steps of some tens of milliseconds, between which others have their turn."""
        await asyncio.sleep(0)
        if isinstance(text, str) and (len(text) > self._most_chars or self._refused(text, request)):
            return too_long(len(text))
        work = self._begin(text)
        if isinstance(work, _Work):
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, self._complete, [work])
        await asyncio.sleep(0)
        return self._finish(work, request)

    def _refused(self, text: str, request: PromptRequest) -> bool:
        """However few tokens it has, no engine takes it, nor cuts it to what one takes."""
        length, longest = self._token_length, self._longest()
        if length is None or longest is None or request.truncate_prompt_tokens is not None:
            return False
        return length.fewest_tokens(text) > longest

    def tokenise(self, request: PromptRequest) -> list[TokenPrompt]:
        """`encode` for callers that want to know why not: raises PromptError. Blocks while it works; not to
        be mixed with `encode` from another thread.
        """
        works = [self._begin(text) for text in self.texts(request)]
        self._complete(works)
        return [self._finish(work, request) for work in works]

    def texts(self, request: PromptRequest) -> Sequence[str | Sequence[int]]:
        """What is to be tokenised: the rendered chat, or the prompts as they are. Raises PromptError."""
        if request.messages is not None:
            return [self._renderer.render(request)]
        if request.prompts is None:
            raise PromptError("there is no prompt")
        return request.prompts

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, prompt: str | Sequence[int]) -> _Work | array[int]:
        if not isinstance(prompt, str):
            try:
                return array("I", prompt)
            except (TypeError, OverflowError) as error:
                raise PromptError("token ids must be non-negative integers", param="prompt") from error
        before, mark, after = prompt.partition(MEDIA_MARK)
        plan = self._segments.plan(before + after.replace(MEDIA_MARK, ""))
        if not mark:
            return _Work(plan)
        # the last segment before the media may end otherwise than it will in the engine
        certain = self._segments.split(before)[:-1]
        trusted = 0
        for ours, whole in zip(certain, plan.segments, strict=False):
            if ours != whole:
                break
            trusted += 1
        return _Work(plan, trusted)

    def _complete(self, works: Sequence[_Work | array[int]]) -> None:
        try:
            for work in works:
                if isinstance(work, _Work):
                    self._segments.complete(work.plan)
        except (UnicodeEncodeError, TypeError) as error:
            raise PromptError("the text is not valid Unicode") from error

    def _finish(self, work: _Work | array[int], request: PromptRequest) -> TokenPrompt:
        if isinstance(work, array):
            tokens = _sliced(
                work, request.truncate_prompt_tokens, request.template_args.get("truncation_side")
            )
            return TokenPrompt(tokens, len(tokens))
        self._segments.remember(work.plan)
        tokens = self._edged(work.plan.tokens(), request)
        if work.trusted is None:
            return TokenPrompt(tokens, len(tokens))
        lengths = [len(part) for part in work.plan.known if part is not None]
        kept_whole = request.truncate_prompt_tokens is None and not request.add_special_tokens
        return TokenPrompt(tokens, sum(lengths[: work.trusted]) if kept_whole else 0)

    def _edged(self, body: array[int], request: PromptRequest) -> array[int]:
        """With the tokens of `add_special_tokens` round it, and cut to `truncate_prompt_tokens`. Where no
        side is named the tokenizer itself cuts, from the left in generating engines, and keeps its edges.
        """
        limit = request.truncate_prompt_tokens
        side = request.template_args.get("truncation_side")
        head, tail = array("I"), array("I")
        if not request.add_special_tokens and limit is None:
            return body
        if request.add_special_tokens:
            if self._segments.edges is None:
                raise PromptError("this tokenizer's special tokens are not at its edges")
            head, tail = (array("I", edge) for edge in self._segments.edges)
        if limit is not None and limit >= 0 and side is None:
            room = limit - len(head) - len(tail)
            if room < 0:
                raise PromptError("truncate_prompt_tokens leaves no room for special tokens")
            body = body[max(0, len(body) - room) :]
        return _sliced(head + body + tail, limit, side)


def _sliced(tokens: array[int], limit: int | None, side: str | None) -> array[int]:
    # a negative limit means the engine's own maximum, beyond which a prompt is refused anyway
    if limit is None or limit < 0 or limit >= len(tokens):
        return tokens
    return tokens[:limit] if side == "right" else tokens[len(tokens) - limit :]
