"""Bodies of requests: the fields this engine reads, and what makes a body invalid by itself.

Unknown fields are accepted. Fields that vLLM honours and this engine cannot are refused by name: silently
ignoring a constraint on the output would be worse than saying so.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

import msgspec

from workers.api.errors import BadRequest, InvalidBody, bad_value

EMPTY_CHAT = "Cannot apply chat template to an empty conversation. Provide at least one message."
_MAX_SALT_LENGTH = 128
_SALT_FORBIDDEN = frozenset("@/\\\x00")
_MAX_SEQUENCES = 1024
_INT64 = 2**63
_POSITION = re.compile(r"\(byte (\d+)\)")


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = False


class GenerationBody(msgspec.Struct, kw_only=True):
    """What chat and completions share."""

    length_field: ClassVar[str] = "max_tokens"
    """How the client's API calls `max_tokens`."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    request_id: str | None = None

    # known to vLLM, beyond this engine
    use_beam_search: bool | None = False
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_p: float | None = None
    prompt_logprobs: int | None = None

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    add_special_tokens: bool | None = True


class ChatBody(GenerationBody, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(raw: bytes, kind: type[Body]) -> Body:
    """The body as `kind`; raises InvalidBody that names the field in vLLM's form (``body.max_tokens``)."""
    try:
        # strict=False takes 5.0 for 5 and "5" for 5, as vLLM does
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.ValidationError as error:
        reason, param = _locate(str(error))
        raise InvalidBody(f"1 validation error: {param}: {reason}", param=param) from error
    except (msgspec.DecodeError, RecursionError) as error:
        position = _POSITION.search(str(error))
        param = f"body.{position[1]}" if position else "body"
        raise InvalidBody(f"1 validation error: {param}: JSON decode error: {error}", param=param) from error


def _locate(text: str) -> tuple[str, str]:
    """``Expected `int`, got `str` - at `$.n``` → (``Expected `int`, got `str```, ``body.n``)."""
    reason, _, path = text.partition(" - at `$")
    if reason.startswith("Object missing required field `"):
        return "Field required", f"body{path.rstrip('`')}.{reason.split('`')[1]}"
    return reason, "body" + path.rstrip("`").replace("[", ".").replace("]", "")


def check_generation(body: GenerationBody) -> None:
    """What is wrong with a body whatever the model; raises BadRequest naming the field."""
    if body.stream_options is not None and not body.stream:
        raise BadRequest("Stream options can only be defined when `stream=True`.", param="stream_options")
    if not 1 <= body.choices <= _MAX_SEQUENCES:
        raise bad_value(f"n must be in [1, {_MAX_SEQUENCES}], got {body.n}.", "n", body.n)
    if body.seed is not None and not -_INT64 <= body.seed < _INT64:
        raise bad_value("seed must fit in 64 bits.", "seed", body.seed)
    if "" in body.stops:
        raise BadRequest("stop cannot contain an empty string.", param="stop")
    if body.truncation_side not in (None, "left", "right"):
        raise bad_value(
            "`truncation_side` must be either 'left' or 'right'.", "truncation_side", body.truncation_side
        )
    _check_salt(body.cache_salt)
    _check_supported(body)


def _check_salt(salt: str | None) -> None:
    if salt is None:
        return
    if not salt:
        raise BadRequest(
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
            param="cache_salt",
        )
    if len(salt) > _MAX_SALT_LENGTH or not _SALT_FORBIDDEN.isdisjoint(salt):
        raise BadRequest(
            f"Parameter 'cache_salt' must be at most {_MAX_SALT_LENGTH} characters and must not contain "
            "'@', '/', '\\\\', or NUL. (parameter=cache_salt)",
            param="cache_salt",
        )


def _check_supported(body: GenerationBody) -> None:
    wanted = {
        "use_beam_search": bool(body.use_beam_search),
        "logit_bias": bool(body.logit_bias),
        "response_format": bool(body.response_format) and body.response_format != {"type": "text"},
        "structured_outputs": bool(body.structured_outputs),
        "allowed_token_ids": bool(body.allowed_token_ids),
        "bad_words": bool(body.bad_words),
        "min_p": bool(body.min_p),
        "prompt_logprobs": body.prompt_logprobs is not None,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise unsupported(name)


def unsupported(name: str) -> BadRequest:
    return BadRequest(f"The reference engine does not support `{name}`.", param=name)


def check_completion(body: CompletionBody) -> None:
    check_generation(body)
    if body.prompt is None or body.prompt == "":
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if body.echo and body.logprobs is not None:
        raise BadRequest(
            "The reference engine does not support `logprobs` of the prompt that `echo` repeats.",
            param="logprobs",
        )


def check_chat(body: ChatBody) -> None:
    check_generation(body)
    check_messages(body.messages)
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequest("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    _check_tools(body)


def check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise BadRequest(EMPTY_CHAT, param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise InvalidBody(
                f"1 validation error: body.messages.{i}.role: Field required", param=f"body.messages.{i}.role"
            )
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            param = f"body.messages.{i}.content"
            raise InvalidBody(f"1 validation error: {param}: Expected `str | array | null`", param=param)


def _check_tools(body: ChatBody) -> None:
    """Tools are rendered into the prompt. A choice that is to be enforced on the output is refused."""
    if body.tools == []:
        raise BadRequest("`tools` must not be an empty array.", param="tools")
    names = set()
    for i, tool in enumerate(body.tools or ()):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            param = f"body.tools.{i}.function.name"
            raise InvalidBody(f"1 validation error: {param}: Field required", param=param)
        names.add(name)
    choice = body.tool_choice
    if choice is None or choice == "none":
        return
    if not body.tools:
        raise BadRequest("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            raise BadRequest(f"Invalid value for `tool_choice`: {choice}!", param="tool_choice")
        if choice == "required":
            raise _unsupported_choice("required")
        return
    function = choice.get("function")
    if not isinstance(function, dict) or function.get("name") not in names:
        raise BadRequest(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            param="tool_choice",
        )
    raise _unsupported_choice("of a named tool")


def _unsupported_choice(what: str) -> BadRequest:
    return BadRequest(
        f"The reference engine does not support `tool_choice` {what}: it can't make a model call a tool.",
        param="tool_choice",
    )
