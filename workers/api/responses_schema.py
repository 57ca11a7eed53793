"""Bodies of OpenAI's Responses API as vLLM takes them, and the chats that they become."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from gateway.prompt import responses_api
from gateway.prompt.base import PromptError
from workers.api.errors import BadRequest, ResponseNotFound
from workers.api.schema import EMPTY_CHAT, ChatBody, unsupported

_LOGPROBS = "message.output_text.logprobs"


class ResponsesChat(ChatBody):
    length_field: ClassVar[str] = "max_output_tokens"


class ResponsesBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Other fields are accepted, and play no part."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    request_id: str | None = None

    # what an answer repeats
    metadata: dict[str, str] | None = None
    max_tool_calls: int | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    text: dict[str, Any] | None = None
    user: str | None = None

    # known to vLLM, beyond this engine
    background: bool | None = False
    previous_response_id: str | None = None
    previous_input_messages: list[Any] | None = None
    prompt: dict[str, Any] | None = None
    include: list[str] | None = None
    structured_outputs: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None


def check_body(body: ResponsesBody) -> None:
    """What is wrong with a body whatever the prompt. Raises BadRequest for what this engine can't do, and
    ResponseNotFound: no response is kept."""
    if body.prompt is not None:
        raise BadRequest("prompt template is not supported (parameter=prompt)", param="prompt")
    if body.previous_response_id is not None:
        raise ResponseNotFound(body.previous_response_id)
    form = (body.text or {}).get("format")
    wanted = {
        "background": bool(body.background),
        "previous_input_messages": bool(body.previous_input_messages),
        "text.format": form is not None and form != {"type": "text"},
        "structured_outputs": bool(body.structured_outputs),
        "logit_bias": bool(body.logit_bias),
        "min_p": bool(body.min_p),
    }
    if _LOGPROBS in (body.include or ()):
        raise BadRequest(f"The reference engine does not support `{_LOGPROBS}`.", param="include")
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise unsupported(name)


def chat_of(body: ResponsesBody) -> ResponsesChat:
    """The chat with the same answer. Raises BadRequest."""
    if body.input == []:
        raise BadRequest(EMPTY_CHAT, param="input")
    try:
        messages, arguments = responses_api.chat_of(msgspec.to_builtins(body))
    except PromptError as error:
        raise BadRequest(error.message, param=error.param) from error
    tools = arguments.get("tools")
    return ResponsesChat(
        model=body.model,
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, bool(tools)),
        add_generation_prompt=arguments["add_generation_prompt"],
        continue_final_message=arguments["continue_final_message"],
        reasoning_effort=arguments.get("reasoning_effort"),
        chat_template_kwargs=arguments.get("chat_template_kwargs"),
        truncate_prompt_tokens=None if body.truncation in (None, "disabled") else -1,
        max_tokens=body.max_output_tokens,
        **{
            name: getattr(body, name)
            for name in (
                "stream", "temperature", "top_p", "top_k", "cache_salt", "seed", "stop", "stop_token_ids",
                "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "presence_penalty",
                "frequency_penalty", "repetition_penalty",
            )
        },
    )  # fmt: skip


def _tool_choice(choice: str | dict[str, Any] | None, has_tools: bool) -> str | dict[str, Any] | None:
    if isinstance(choice, str):
        return choice if has_tools or choice == "required" else None
    if choice is None or choice.get("type") != "function":
        return choice
    return {"type": "function", "function": {"name": choice.get("name")}}
