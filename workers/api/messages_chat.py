"""The chats that bodies of the Messages API become."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.prompt import messages_api
from gateway.prompt.base import PromptError
from workers.api.errors import BadRequest
from workers.api.messages_schema import CountTokensBody, MessagesBody
from workers.api.schema import ChatBody, check_messages, unsupported


def prompt_chat(body: CountTokensBody) -> ChatBody:
    """The chat with the same prompt. Raises BadRequest."""
    fields = msgspec.to_builtins(body)
    check_messages(fields["messages"])
    try:
        messages, arguments = messages_api.chat_of(fields)
    except PromptError as error:
        raise BadRequest(error.message, param=error.param) from error
    return ChatBody(
        model=body.model,
        messages=messages,
        tools=arguments.get("tools"),
        tool_choice=arguments.get("tool_choice"),
        reasoning_effort=arguments.get("reasoning_effort"),
        chat_template_kwargs=arguments.get("chat_template_kwargs"),
    )


def chat_of(body: MessagesBody) -> ChatBody:
    """The chat with the same answer. Raises BadRequest for what this engine can't do to an answer."""
    if body.output_config is not None and body.output_config.format is not None:
        raise unsupported("output_config.format")
    if body.thinking is not None and body.thinking.type == "enabled":
        raise unsupported("thinking.budget_tokens")
    return msgspec.structs.replace(
        prompt_chat(body),
        tool_choice=_tool_choice(body),
        max_tokens=body.max_tokens,
        max_completion_tokens=body.max_tokens,
        stream=body.stream,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        cache_salt=body.cache_salt,
    )


def _tool_choice(body: MessagesBody) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None or (choice.type == "auto" and not body.tools):
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type
