"""Contracts of the prompt side: what is read from a request, and what turns it into tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Protocol, Self, TypeAlias, get_args

import msgspec

from gateway.errors import InvalidRequest


class PromptError(InvalidRequest):
    """This prompt cannot be rendered or tokenised as asked; an engine would refuse it with 400. The message
    says why. Encoders answer it with [], engines show it to the client."""


class Endpoint(Enum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class PromptRequest(msgspec.Struct, frozen=True):
    """The fields of a generation request that a router reads. Read leniently: a field of the wrong type is
    as good as absent, for the engine is the one to refuse it. The body itself travels untouched.

    `messages` is set for chat, and for the two APIs that engines turn into a chat (Responses, Messages).
    `prompts` is set for completions: each is a text or a list of token ids.
    Neither is set when the body could not be understood, or has more in it than is read (`too_many`): such a
    request is routed by load.
    """

    endpoint: Endpoint
    model: str
    messages: Sequence[Mapping[str, Any]] | None = None
    prompts: Sequence[str | Sequence[int]] | None = None
    template_args: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """tools, documents, add_generation_prompt, continue_final_message, chat_template_kwargs…"""
    add_special_tokens: bool = True
    cache_salt: str = ""
    lora_path: str = ""
    """The adapter that SGLang is to use, where the model's name says none."""
    extra_key: str = ""
    """What else sets its K/V apart, in an engine that does not publish it (SGLang's field of that name, or a
    salt for each prompt): nothing that is known to be held is of use to it."""
    truncate_prompt_tokens: int | None = None
    max_tokens: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    """The client asked for ``stream_options.include_usage`` itself."""
    wants_prompt: bool = False
    """The answer is to say something of the prompt (``echo``, ``prompt_logprobs``): it must come from the
    request that has all of it."""
    skips_cache: bool = False
    """It asks for log-probabilities of the prompt: an engine computes all of it, whatever it has cached."""
    too_many: bool = False
    """It has more than MOST_PROMPTS prompts or MOST_ITEMS items."""

    @property
    def salt(self) -> str:
        """That of its block keys' root."""
        return f"{self.cache_salt}\x1e{self.extra_key}" if self.extra_key else self.cache_salt


class TokenPrompt(msgspec.Struct, frozen=True):
    """One prompt, tokenised. `tokens` is array('I'). Where `exact_tokens` is smaller than the prompt (an
    image begins there), only tokens before it may be matched."""

    tokens: array[int]
    exact_tokens: int


MOST_PROMPTS = 1024
"""Of one request. Each costs some work of its own, however short it is, and engines take a few."""
MOST_ITEMS = 16_384
"""Items, messages, tools and content blocks of a request whose API has to be turned into a chat."""
MOST_CHARS = 8_000_000
"""Of one prompt. A longer one has some two million tokens, more than any engine takes: tokenising it would
cost seconds of a core for nothing."""
_CHARS_PER_TOKEN = 4


def too_long(chars: int) -> TokenPrompt:
    """Stands for a prompt that is not tokenised for its length: its size is an estimate, nothing matches."""
    return TokenPrompt(array("I", bytes(4 * (chars // _CHARS_PER_TOKEN))), 0)


Untokenised: TypeAlias = Literal[
    "busy", "failed", "many", "media", "no_worker", "refused", "resting", "truncated", "unreadable"
]
UNTOKENISED: tuple[Untokenised, ...] = get_args(Untokenised)


class NotTokenised(tuple[TokenPrompt, ...]):
    """An encoder's answer where it has no tokens, and knows why: empty, as [] is."""

    kind: Untokenised
    """A metric's label."""
    why: str
    """For a person."""

    def __new__(cls, kind: Untokenised, why: str) -> Self:
        made = super().__new__(cls)
        made.kind, made.why = kind, why
        return made


def not_tokenised(
    prompts: Sequence[TokenPrompt], request: PromptRequest | None = None
) -> NotTokenised | None:
    """Why there are no tokens of `request`, where there are none."""
    if prompts:
        return None
    if isinstance(prompts, NotTokenised):
        return prompts
    if request is not None and request.too_many:
        return NotTokenised(
            "many",
            f"the request has more than {MOST_PROMPTS} prompts, or {MOST_ITEMS} items, blocks and tools",
        )
    return NotTokenised("unreadable", "the request has no prompt that can be tokenised as the engine would")


class PromptEncoder(Protocol):
    """One model's way from a request to tokens.

    `name` says which source it is (``local``, ``engine``, ``bytes``); `exact` whether its tokens are the
    engine's own. `encode` returns one TokenPrompt per prompt of the request, or [] (a
    NotTokenised, where it knows more) where it cannot tell: then the request is routed by load. It never
    raises for a client's input; it raises nothing but CancelledError otherwise.
    """

    name: str
    exact: bool

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]: ...

    async def close(self) -> None: ...
