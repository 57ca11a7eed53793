"""Anthropic's Messages API → the chat that an engine makes of it, as vLLM does (`entrypoints/anthropic`,
releases 0.32 and 0.33); what its template has a say in is left to the renderer. Raises PromptError for what
can't be followed: such a request is routed by load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.prompt.base import PromptError
from gateway.prompt.tool_changes import tools_in_effect

Message = dict[str, Any]

# a client's attribution line with a hash in it that changes with every request; engines drop its block
_BILLING_HEADER = "x-anthropic-billing-header"


def chat_of(fields: Mapping[str, Any]) -> tuple[list[Message], dict[str, Any]]:
    """(messages, template arguments) of a chat with the same prompt."""
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise PromptError("messages must be a list", param="messages")
    messages: list[Message] = []
    if system := _system_text(fields.get("system")):
        messages.append({"role": "system", "content": system})
    for message in given:
        if not isinstance(message, dict):
            raise PromptError("a message must be an object", param="messages")
        messages += _converted(message)
    return messages, _template_args(fields)


def _system_text(system: object) -> str:
    if isinstance(system, str):
        return system
    return "".join(_system_texts(system)) if isinstance(system, list) else ""


def _system_texts(blocks: Iterable[Any]) -> Iterable[str]:
    for block in blocks:
        text = block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        if isinstance(text, str) and not text.startswith(_BILLING_HEADER):
            yield text


def _converted(message: Mapping[str, Any]) -> list[Message]:
    """What one message becomes: tool results stand before it, as messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        if isinstance(content, str):
            text = "" if content.startswith(_BILLING_HEADER) else content
        else:
            text = _system_text(content)
        return [{"role": "system", "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise PromptError("a message's content must be a text or a list of blocks", param="messages")
    before: list[Message] = []
    own = _from_blocks(role, content, before)
    return before if role == "user" and "content" not in own else [*before, own]


def _from_blocks(role: object, blocks: Sequence[Any], before: list[Message]) -> Message:
    parts: list[Message] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text" and isinstance(block.get("text"), str):
            if block["text"]:
                parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append(_image(block.get("source")))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_tool_call(block))
        elif kind == "tool_result" and role == "user":
            before += _tool_result(block)
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
        elif kind not in ("redacted_thinking", "tool_reference"):
            raise PromptError(f"unsupported block type {kind!r}", param="messages")
    own: Message = {"role": role}
    if thoughts:
        own["reasoning"] = "".join(thoughts)
    if calls:
        own["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        own["content"] = parts[0]["text"]
    elif parts:
        own["content"] = parts
    return own


def _image(source: object) -> Message:
    if not isinstance(source, Mapping):
        raise PromptError("an image without a source", param="messages")
    url = source.get("url", "")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(block: Mapping[str, Any]) -> Message:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _tool_result(block: Mapping[str, Any]) -> list[Message]:
    content = block.get("content")
    items = [item for item in content if isinstance(item, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else ""
    if items:
        text = "\n".join(str(item.get("text", "")) for item in items if item.get("type") == "text")
    answer = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    messages: list[Message] = [{**answer, "content": text}]
    if images := [_image(item.get("source")) for item in items if item.get("type") == "image"]:
        messages.append({"role": "user", "content": images})
    named = (
        item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"
    )
    if references := [{"type": "tool_reference", "name": name} for name in named if name]:
        messages.append({**answer, "content": references})
    return messages


def _template_args(fields: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if isinstance(kwargs := fields.get("chat_template_kwargs"), dict):
        args["chat_template_kwargs"] = kwargs
    if tools := tools_in_effect(fields):
        args["tools"] = [_tool(tool) for tool in tools]
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "none":
        args["tool_choice"] = "none"
    output, thinking = fields.get("output_config"), fields.get("thinking")
    if isinstance(output, Mapping) and isinstance(effort := output.get("effort"), str):
        args["reasoning_effort"] = effort
    if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
        args["reasoning_effort"] = "none"
    return args


def _tool(tool: Mapping[str, Any]) -> Message:
    schema = tool.get("input_schema")
    if isinstance(schema, Mapping) and "type" not in schema:
        schema = {**schema, "type": "object"}
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": schema,
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}
