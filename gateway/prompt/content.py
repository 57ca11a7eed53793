"""From the messages of a request to what a chat template sees, as vLLM does it (`parse_chat_messages` and
`ChatCompletionRequest`, releases 0.28 to 0.33): content parts flattened or wrapped, tool-call arguments as
mappings, tool definitions in the order of vLLM's own schema. Every step here decides tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gateway.prompt.base import PromptError

ContentFormat = Literal["string", "openai"]
"""What a template expects as a message's content: one text, or a list of parts."""

Message = dict[str, Any]

_TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS = frozenset(
    {
        "image_url",
        "input_image",
        "image_pil",
        "image_embeds",
        "audio_url",
        "input_audio",
        "audio_embeds",
        "video_url",
        "video_embeds",
        "prompt_embeds",
    }
)
# fields that some part type defines: they do not travel with a text, others do
_PART_FIELDS = _MEDIA_PARTS | {
    "closed",
    "data",
    "file",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
}
_REASONING = ("reasoning", "reasoning_content")
# a client's attribution line whose value changes with every request; vLLM drops it from system prompts
_BILLING_HEADER = "x-anthropic-billing-header"


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a content part, or an assistant's reasoning, is an image, a sound, a video or an embedding."""
    for message in messages:
        if isinstance(content := message.get("content"), list):
            for part in content:
                if isinstance(part, Mapping) and is_media(part):
                    return True
        for name in _REASONING:
            if isinstance(message.get(name), Mapping):
                return True
    return False


def conversation(
    messages: Sequence[Mapping[str, Any]], content_format: ContentFormat, media_mark: str = ""
) -> list[Message]:
    """What the template gets as `messages`. `media_mark` stands, once, where the first media item begins (at
    the head of its message where content is one text, since engines put placeholders there); other media
    items leave nothing. Raises PromptError for what an engine refuses.
    """
    marks = iter((media_mark,) if media_mark else ())
    return [_parse_message(message, content_format, lambda: next(marks, "")) for message in messages]


def _parse_message(
    message: Mapping[str, Any], content_format: ContentFormat, take_mark: Callable[[], str]
) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise PromptError("a message has no role", param="messages")
    parts: list[Any] = []
    for part in _content_parts(message, role):
        if not (isinstance(part, Mapping) and is_media(part)):
            parts += _text_part(part, content_format)
        elif mark := take_mark():
            parts.insert(len(parts) if content_format == "openai" else 0, _text(mark, content_format))
    parsed: Message = {"role": role, "content": parts if content_format == "openai" else "\n".join(parts)}
    if role == "assistant":
        _add_assistant_fields(parsed, message)
    elif role == "tool":
        _add_tool_fields(parsed, message)
    for name in ("name", "task"):
        if isinstance(value := message.get(name), str):
            parsed[name] = value
    if role == "developer":
        parsed["tools"] = _developer_tools(message.get("tools"))
    return parsed


def _content_parts(message: Mapping[str, Any], role: str) -> Sequence[Any]:
    content = message.get("content")
    if content is None:
        return ()
    if isinstance(content, str):
        content = [content]
    elif not isinstance(content, list):
        raise PromptError("a message's content must be a text or a list of parts", param="messages")
    if role != "system":
        return content
    return [part for part in map(_without_billing_header, content) if part is not None]


def _without_billing_header(part: Any) -> Any:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
    if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
        return part
    return text.partition("\n")[2] or None


def is_media(part: Mapping[str, Any]) -> bool:
    """Whether a content part is an image, a sound, a video or an embedding."""
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        return any(name in part for name in _MEDIA_PARTS)
    return isinstance(kind, str) and kind in _MEDIA_PARTS


def _text_part(part: Any, content_format: ContentFormat) -> list[Any]:
    """What one part leaves in the content: a text or an object, or nothing where vLLM skips it."""
    if isinstance(part, str):
        return [_text(part, content_format)] if part or content_format == "openai" else []
    if not isinstance(part, Mapping):
        raise PromptError("a content part must be a text or an object", param="messages")
    kind = part.get("type")
    if kind == "tool_reference" or (kind is None and "tool_reference" in part):
        name = part.get("name")
        return [{"type": "tool_reference", "name": name} if content_format == "openai" else name]
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise PromptError(f"unsupported content part type {kind!r}", param="messages")
    text = part.get(field)
    if text is None and kind in ("text", "refusal"):
        return []
    if not isinstance(text, str):
        raise PromptError(f"a {kind} part without a text", param="messages")
    if content_format == "string":
        return [text] if text else []
    extra = {name: value for name, value in part.items() if name not in _PART_FIELDS}
    return [{"type": "text", "text": text, **extra}]


def _text(text: str, content_format: ContentFormat) -> Any:
    return {"type": "text", "text": text} if content_format == "openai" else text


def _add_assistant_fields(parsed: Message, message: Mapping[str, Any]) -> None:
    if (calls := message.get("tool_calls")) is not None:
        if not isinstance(calls, list):
            raise PromptError("tool_calls must be a list", param="messages")
        # templates take an empty list for a call that was made
        if calls:
            parsed["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = next((value for name in _REASONING if (value := message.get(name)) is not None), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):  # vLLM from 0.33: an embedding, which has no tokens
            raise PromptError("an assistant's reasoning must be a text", param="messages")
        parsed["reasoning"] = parsed["reasoning_content"] = reasoning


def _tool_call(call: Any) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise PromptError("assistant tool_calls must be objects of type function", param="messages")
    arguments = _arguments(function.get("arguments"))
    function = _in_order({**function, "arguments": arguments}, ("arguments", "name"))
    return _in_order({**call, "function": function}, ("id", "function", "type"))


def _in_order(fields: Mapping[str, Any], schema: Sequence[str]) -> Message:
    """As engines hold what they validated: the schema's fields first, in its order, then the client's own."""
    return {name: fields[name] for name in schema if name in fields} | dict(fields)


def _arguments(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else {}
        except ValueError:
            value = {}
    return value if isinstance(value, Mapping) else {}


def _developer_tools(tools: Any) -> Any:
    """A developer message's own tools are not dumped like the request's, but validated they are."""
    if not isinstance(tools, list):
        return tools
    schema = ("name", "description", "parameters", "strict")
    return [
        _in_order({**tool, "function": _in_order(tool["function"], schema)}, ("function", "type"))
        for tool in tools
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
    ]


def _add_tool_fields(parsed: Message, message: Mapping[str, Any]) -> None:
    if "tool_call_id" in message:
        parsed["tool_call_id"] = message["tool_call_id"]
    content = parsed["content"]
    # most templates handle only texts here, whatever they do with other roles
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        parsed["content"] = "\n".join(part["text"] for part in content)


def tool_definitions(tools: Sequence[Any]) -> list[Message]:
    """The `tools` that a template sees: vLLM dumps its own schema, so the order of fields is the schema's,
    absent descriptions and parameters are null, and unknown fields are gone.
    """
    return [_tool_definition(tool) for tool in tools]


def _tool_definition(tool: Any) -> Message:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise PromptError("tools must be objects of type function", param="tools")
    if not isinstance(name := function.get("name"), str):
        raise PromptError("a tool has no name", param="tools")
    definition: Message = {
        "name": name,
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    if (strict := function.get("strict")) is not None:
        definition["strict"] = strict
    deferred = tool.get("defer_loading")
    own = function.get("defer_loading")
    if (own if own is not None else deferred) is not None:
        definition["defer_loading"] = own if own is not None else deferred
    dumped: Message = {"type": "function", "function": definition}
    if deferred is not None:
        dumped["defer_loading"] = deferred
    return dumped


def without_developer(messages: Sequence[Message]) -> list[Message]:
    """For templates that do not know the role `developer`: it becomes `system`, and where system messages
    then stand elsewhere than alone at the head, they are merged there.
    """
    renamed = [
        {**{k: v for k, v in message.items() if k != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [message for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0]["role"] == "system":
        return renamed
    contents = [text for text in map(_joined_text, system) if text]
    merged: Message = {"role": "system", "content": "\n\n".join(contents)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _joined_text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
