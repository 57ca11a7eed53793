"""Lenient reading of an OpenAI request body: what a router needs, and never a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.prompt import messages_api, responses_api
from gateway.prompt.base import MOST_ITEMS, MOST_PROMPTS, Endpoint, PromptError, PromptRequest

_TEMPLATE_FIELDS: Mapping[str, type] = {
    "tools": list,
    "documents": list,
    "reasoning_effort": str,
    "chat_template": str,
    "chat_template_kwargs": dict,
    "truncation_side": str,
}
_FLAGS = ("add_generation_prompt", "continue_final_message")
_ELSEWHERE = ("input_ids", "session_params", "suffix")
"""With one of these the prompt is not what `messages` or `prompt` say, or not all of it. The first two are
SGLang's; a text to be filled up to its suffix is put together by the engine."""
_UNUSUAL = frozenset(
    (
        *_TEMPLATE_FIELDS, *_FLAGS, "tool_choice", "add_special_tokens", "cache_salt",
        "extra_key", "lora_path", *_ELSEWHERE, "truncate_prompt_tokens", "n", "max_completion_tokens", "echo",
        "prompt_logprobs",
    )
)  # fmt: skip
"""Fields that most requests have none of: one look tells so, and none of them is looked for."""


def read_prompt(endpoint: Endpoint, body: object) -> PromptRequest:
    """Reads a parsed JSON body. Raises nothing: a field of a wrong type is as good as absent, and a body
    whose prompt makes no sense comes back with neither `messages` nor `prompts`.
    """
    fields = body if isinstance(body, dict) else {}
    if endpoint is Endpoint.RESPONSES or endpoint is Endpoint.MESSAGES:
        return _converted(endpoint, fields)
    chat, get = endpoint is Endpoint.CHAT, fields.get
    max_tokens = _integer(get("max_tokens"))
    usual = _UNUSUAL.isdisjoint(fields)
    if chat and not usual and (completion := _integer(get("max_completion_tokens"))) is not None:
        max_tokens = completion
    options, stream, model = get("stream_options"), get("stream"), get("model")
    many = not chat and _many_prompts(get("prompt"))
    unread = many or (not usual and any(get(name) not in (None, [], {}) for name in _ELSEWHERE))
    salt, adapter, extra = ("", "", "") if usual else _apart(fields)
    # 0 asks for the prompt's own tokens
    logprobs = not usual and get("prompt_logprobs") is not None
    echo = not usual and _flag(get("echo"), False)
    return PromptRequest(
        endpoint=endpoint,
        model=model if isinstance(model, str) else "",
        messages=_messages(get("messages")) if chat and not unread else None,
        prompts=None if chat or unread else _prompts(fields),
        template_args={} if usual else _template_args(fields),
        # vLLM's defaults: a chat template writes its own special tokens, a bare prompt has none
        add_special_tokens=not chat if usual else _flag(get("add_special_tokens"), not chat),
        cache_salt=salt,
        lora_path=adapter,
        extra_key=extra,
        truncate_prompt_tokens=None if usual else _integer(get("truncate_prompt_tokens")),
        max_tokens=max_tokens,
        n=1 if usual else max(1, _integer(get("n")) or 1),
        stream=stream is not None and _flag(stream, False),
        include_usage=isinstance(options, dict) and _flag(options.get("include_usage"), False),
        wants_prompt=echo or logprobs,
        # vLLM: an echoed chat has its prompt's log-probabilities by default, an echoed text where it asks
        skips_cache=logprobs or (echo and (chat or get("logprobs") is not None)),
        too_many=many,
    )


def _converted(endpoint: Endpoint, fields: Mapping[str, Any]) -> PromptRequest:
    """An API that the engine itself turns into a chat. Its streams bring usage unasked."""
    responses = endpoint is Endpoint.RESPONSES
    messages: Sequence[Mapping[str, Any]] | None = None
    args: dict[str, Any] = {}
    many = _many_items(fields, "input" if responses else "messages")
    if not many:
        try:
            messages, args = (responses_api if responses else messages_api).chat_of(fields)
        except PromptError:
            args = {}
    cuts = responses and fields.get("truncation") not in (None, "disabled")
    salt, adapter, extra = _apart(fields)
    return PromptRequest(
        endpoint=endpoint,
        model=_text(fields.get("model")),
        messages=messages,
        template_args=args,
        add_special_tokens=False,
        cache_salt=salt,
        lora_path=adapter,
        extra_key=extra,
        truncate_prompt_tokens=-1 if cuts else None,
        max_tokens=_integer(fields.get("max_output_tokens" if responses else "max_tokens")),
        stream=_flag(fields.get("stream"), False),
        include_usage=True,
        too_many=many,
    )


def _many_prompts(value: object) -> bool:
    """Without a look at more than the first of them."""
    return isinstance(value, list) and len(value) > MOST_PROMPTS and not isinstance(value[0], int)


def _many_items(fields: Mapping[str, Any], name: str) -> bool:
    """Whether the list `name`, what its items consist of, tools and system blocks are too many."""
    lists = [value for field in (name, "tools", "system") if isinstance(value := fields.get(field), list)]
    count = sum(map(len, lists))
    if count > MOST_ITEMS or not lists:
        return count > MOST_ITEMS
    for item in lists[0]:
        if isinstance(item, dict) and isinstance(content := item.get("content"), list):
            count += len(content)
    return count > MOST_ITEMS


def _template_args(fields: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for name, kind in _TEMPLATE_FIELDS.items():
        if isinstance(value := fields.get(name), kind):
            args[name] = value
    for name in _FLAGS:
        if (flag := _optional_flag(fields.get(name))) is not None:
            args[name] = flag
    if isinstance(choice := fields.get("tool_choice"), str | dict):
        args["tool_choice"] = choice
    return args


def _messages(value: object) -> Sequence[Mapping[str, Any]] | None:
    if not isinstance(value, list) or not value:
        return None
    for message in value:
        if not isinstance(message, dict):
            return None
    return value


def _prompts(fields: Mapping[str, Any]) -> Sequence[str | Sequence[int]] | None:
    value = fields.get("prompt")
    if fields.get("prompt_embeds") is not None:
        return None
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return None
    if isinstance(value[0], int):
        return [value]
    if all(isinstance(prompt, str | list) for prompt in value):
        return value
    return None


def _apart(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """The salt, SGLang's adapter, and what else sets its cache apart. SGLang takes lists of each as well, one
    for each prompt."""
    salt, adapter, extra = (_alone(fields.get(name)) for name in ("cache_salt", "lora_path", "extra_key"))
    extras = [repr(value) for value in (salt, adapter, extra) if value and isinstance(value, list)]
    if isinstance(extra, str) and extra:
        extras.append(extra)
    return _text(salt), _text(adapter), "\x1e".join(extras)


def _alone(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _optional_flag(value: object) -> bool | None:
    # engines parse with pydantic, which takes 0 and 1 for booleans
    return bool(value) if isinstance(value, bool | int) and value in (0, 1) else None


def _flag(value: object, default: bool) -> bool:
    flag = _optional_flag(value)
    return default if flag is None else flag
