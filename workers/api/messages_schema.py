"""Bodies of Anthropic's Messages API as vLLM takes them, and what makes one invalid by itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from workers.api.errors import InvalidBody

_LEAST_BUDGET = 1024


class _Part(msgspec.Struct, omit_defaults=True):
    """A piece of a body. Fields that it does not have are accepted, and play no part."""


class Tool(_Part, kw_only=True):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None


class NamedTool(_Part, tag_field="type", tag="tool_reference"):
    name: str


class DefinedTool(_Part, tag_field="type", tag="tool_definition"):
    definition: Tool


class Block(_Part):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "tool_addition",
        "tool_removal",
        "thinking",
        "redacted_thinking",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    tool_name: str | None = None
    thinking: str | None = None
    tool: NamedTool | DefinedTool | None = None


class Message(_Part):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolChoice(_Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class OutputFormat(_Part):
    schema: dict[str, Any] | None = None


class OutputConfig(_Part):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Thinking(_Part):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class CountTokensBody(_Part):
    """What decides the prompt."""

    model: str
    messages: list[Message]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountTokensBody, kw_only=True):
    max_tokens: int
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    cache_salt: str | None = None


def check_body(body: CountTokensBody) -> None:
    """What is wrong with a body by itself; raises InvalidBody."""
    if not body.model:
        raise _invalid("body.model", "Model is required")
    if isinstance(body, MessagesBody) and body.max_tokens <= 0:
        raise _invalid("body.max_tokens", "max_tokens must be positive")
    if isinstance(body, MessagesBody) and body.cache_salt == "":
        raise _invalid("body.cache_salt", "String should have at least 1 character")
    if body.tool_choice is not None and body.tool_choice.type == "tool" and not body.tool_choice.name:
        raise _invalid("body.tool_choice", "tool_choice.name is required when type is 'tool'")
    _check_thinking(body)
    contents = [("body.system", body.system)]
    contents += [
        (f"body.messages.{i}", message.content)
        for i, message in enumerate(body.messages)
        if message.role != "system"
    ]
    for param, content in contents:
        kinds = {block.type for block in content} if isinstance(content, list) else set()
        if kinds & {"tool_addition", "tool_removal"}:
            raise _invalid(param, "tools are added and removed in messages of the role system only")


def _check_thinking(body: CountTokensBody) -> None:
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled":
        return
    if thinking.budget_tokens is None or thinking.budget_tokens < _LEAST_BUDGET:
        raise _invalid("body.thinking.budget_tokens", f"Input should be at least {_LEAST_BUDGET}")
    if isinstance(body, MessagesBody) and thinking.budget_tokens >= body.max_tokens:
        raise _invalid("body", "thinking.budget_tokens must be less than max_tokens")


def _invalid(param: str, reason: str) -> InvalidBody:
    return InvalidBody(f"1 validation error: {param}: {reason}", param=param)
