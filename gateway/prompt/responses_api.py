"""OpenAI's Responses API → the chat that an engine makes of it, as vLLM does (`entrypoints/openai/responses`,
releases 0.28 to 0.33, models with a chat template). Raises PromptError for what can't be followed: such a
request is routed by load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompt.base import PromptError

Message = dict[str, Any]

_UNFINISHED = ("in_progress", "incomplete")


def chat_of(fields: Mapping[str, Any]) -> tuple[list[Message], dict[str, Any]]:
    """(messages, template arguments) of a chat with the same prompt."""
    for name in ("previous_response_id", "previous_input_messages", "prompt", "conversation"):
        if fields.get(name):
            raise PromptError(f"{name}: what it stands for is known to the engine alone", param=name)
    messages: list[Message] = []
    if isinstance(instructions := fields.get("instructions"), str) and instructions:
        messages.append({"role": "system", "content": instructions})
    given = fields.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        items: list[Message] = []
        for item in given:
            _add(items, item)
        messages += items
    else:
        raise PromptError("input must be a text or a list of items", param="input")
    return messages, _template_args(fields, given)


def _add(items: list[Message], item: object) -> None:
    """One item more. Reasoning, text and tool calls of one assistant turn share a message."""
    if not isinstance(item, Mapping):
        raise PromptError("an input item must be an object", param="input")
    kind = item.get("type")
    if kind == "function_call":
        _add_call(items, item)
    elif kind == "reasoning":
        if item.get("encrypted_content"):
            raise PromptError("encrypted reasoning can't be read", param="input")
        _complete(items, "reasoning", _first_text(item.get("content") or item.get("summary")) or "")
    elif kind == "function_call_output":
        answer = {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
        items.append(answer)
    elif item.get("role") == "assistant" and (text := _first_text(item.get("content"))) is not None:
        _complete(items, "content", text)
    elif "role" in item:
        items.append(dict(item))
    else:
        raise PromptError(f"unsupported input item type {kind!r}", param="input")


def _add_call(items: list[Message], item: Mapping[str, Any]) -> None:
    if item.get("namespace"):
        raise PromptError("namespaced tool calls can't be followed", param="input")
    call = {
        "id": item.get("call_id"),
        "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        "type": "function",
    }
    if items and items[-1].get("role") == "assistant":
        items[-1].setdefault("tool_calls", []).append(call)
    else:
        items.append({"role": "assistant", "tool_calls": [call]})


def _complete(items: list[Message], field: str, text: str) -> None:
    """Into the assistant's message that lacks it, or into a new one."""
    last = items[-1] if items else {}
    if last.get("role") == "assistant" and last.get(field) is None:
        last[field] = text
    else:
        items.append({"role": "assistant", field: text})


def _first_text(content: object) -> str | None:
    if isinstance(content, str):
        return content
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, Mapping) else None
    return text if isinstance(text, str) else None


def _template_args(fields: Mapping[str, Any], given: object) -> dict[str, Any]:
    unfinished = _is_unfinished(given)
    args: dict[str, Any] = {
        "add_generation_prompt": not unfinished,
        "continue_final_message": unfinished,
    }
    if isinstance(kwargs := fields.get("chat_template_kwargs"), dict):
        args["chat_template_kwargs"] = kwargs
    if isinstance(tools := fields.get("tools"), list) and (functions := _functions(tools)):
        args["tools"] = functions
    if isinstance(choice := fields.get("tool_choice"), str):
        args["tool_choice"] = choice
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, Mapping) and isinstance(effort := reasoning.get("effort"), str):
        args["reasoning_effort"] = effort
    return args


def _is_unfinished(given: object) -> bool:
    """The last item is a piece of an answer that is to be gone on with."""
    last = given[-1] if isinstance(given, list) else None
    return (
        isinstance(last, Mapping)
        and last.get("type", "message") in ("message", "reasoning")
        and last.get("status") in _UNFINISHED
    )


def _functions(tools: list[Any]) -> list[Message]:
    """Tools as a chat has them; those that engines run themselves are not in the prompt."""
    functions: list[Message] = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind in ("namespace", "custom"):
            raise PromptError(f"tools of type {kind} can't be followed", param="tools")
        if kind == "function":
            functions.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
    return functions
