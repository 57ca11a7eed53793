"""Tools that a conversation of the Messages API adds and removes on its way (vLLM from 0.32): templates see
one list, of those in effect at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.prompt.base import PromptError

Tool = Mapping[str, Any]


def tools_in_effect(fields: Mapping[str, Any]) -> Sequence[Tool]:
    """Of a request's body, as the client wrote them. Raises PromptError for what engines refuse."""
    given = fields.get("tools")
    tools = given if isinstance(given, list) else []
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise PromptError("a tool must be an object", param="tools")
    changes = list(_changes(fields.get("messages")))
    if not changes:
        return tools
    by_name = {_name(tool): tool for tool in tools}
    removed: set[str] = set()
    for kind, change in changes:
        definition = change.get("definition")
        if change.get("type") == "tool_definition" and isinstance(definition, Mapping):
            name = _name(definition)
            by_name[name] = definition
        elif (name := _name(change)) not in by_name:
            raise PromptError(f"{kind} names a tool {name!r} that is not among the tools", param="messages")
        elif kind == "tool_addition":
            by_name[name] = {**by_name[name], "defer_loading": None}
        if kind == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in by_name.items() if name not in removed]


def _changes(messages: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, Mapping) else None
            if kind in ("tool_addition", "tool_removal"):
                change = block.get("tool")
                if not isinstance(change, Mapping):
                    raise PromptError(f"{kind} without a tool", param="messages")
                yield kind, change


def _name(tool: Tool) -> str:
    name = tool.get("name")
    if not isinstance(name, str):
        raise PromptError("a tool has no name", param="tools")
    return name
