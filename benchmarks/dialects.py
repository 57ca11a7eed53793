"""One chat by each of the APIs that take it, and the token counts in their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

APIS = ("chat", "messages", "responses")


def by_api(
    api: str, model: str, system: str, turns: Sequence[Mapping[str, str]], max_tokens: int
) -> tuple[str, dict[str, Any]]:
    """(path, body) of a greedy request with the same prompt, whichever of APIS it is."""
    body: dict[str, Any] = {"model": model, "temperature": 0}
    if api == "messages":
        return "/v1/messages", body | {"system": system, "messages": turns, "max_tokens": max_tokens}
    if api == "responses":
        return "/v1/responses", body | {
            "instructions": system, "input": turns, "max_output_tokens": max_tokens,
        }  # fmt: skip
    messages = [{"role": "system", "content": system}, *turns]
    return "/v1/chat/completions", body | {"messages": messages, "max_tokens": max_tokens}


def counted(usage: Mapping[str, Any]) -> tuple[int, int] | None:
    """(prompt tokens, of them cached); None where the engine does not tell what was cached."""
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + (usage.get("cache_creation_input_tokens") or 0) + cached, cached
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if details is None:
        return None
    return usage.get("prompt_tokens", usage.get("input_tokens", 0)), details["cached_tokens"] or 0
