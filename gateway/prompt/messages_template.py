"""What a chat template has a say in when the Messages API becomes a chat, found out by trying it
as vLLM does (`entrypoints/anthropic`, releases 0.32 and 0.33).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.prompt.base import PromptError

_TURNS = tuple({"role": role, "content": "t"} for role in ("system", "user", "system", "user"))
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def wants_system_first(source: str) -> bool:
    """Whether a system message between others is to be merged into the first one. Engines try with a bare
    sandbox: a template that needs a function which is only given to it otherwise counts as one that refuses.
    """
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    try:
        env.from_string(source).render(messages=list(_TURNS), add_generation_prompt=False)
    except Exception:  # noqa: BLE001  (a template's own refusal, or one that fails in another way)
        return True
    return False


def system_first(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """All system messages as one, at the head. Their contents are texts, as the conversion leaves them."""
    text = "".join(message["content"] for message in messages if message.get("role") == "system")
    others = [message for message in messages if message.get("role") != "system"]
    return [{"role": "system", "content": text}, *others] if text else others


def effort_without_thinking(render: Callable[[str], str]) -> str:
    """The `reasoning_effort` that `thinking: disabled` becomes. `render`: an effort → the text of some
    prompt; raises PromptError. A template that refuses "none", or takes it for another effort, gets "low".
    """
    try:
        none = render("none")
    except PromptError:
        return "low"
    return "low" if any(_text(render, effort) == none for effort in _EFFORTS) else "none"


def _text(render: Callable[[str], str], effort: str) -> str | None:
    try:
        return render(effort)
    except PromptError:
        return None
