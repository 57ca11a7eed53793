"""What templates have a say in when the Messages API becomes a chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt.base import Endpoint, PromptError
from gateway.prompt.files import TokenizerFiles
from gateway.prompt.messages_template import wants_system_first
from gateway.prompt.reader import read_prompt
from gateway.prompt.render import ChatRenderer, RenderOptions

DATA = Path(__file__).resolve().parents[2] / "data" / "prompts"
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DATED = "{{ strftime_now('%Y') }}" + PLAIN
LATE: list[Any] = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
    {"role": "user", "content": "3"},
]


def rendered(tiny: TokenizerFiles, template: str, **fields: Any) -> str:
    request = read_prompt(Endpoint.MESSAGES, {"model": "m", "max_tokens": 1, "messages": LATE, **fields})
    return ChatRenderer(tiny, RenderOptions(chat_template=template)).render(request)


@pytest.mark.parametrize("case", json.loads((DATA / "system_first.json").read_text()))
def test_templates_are_told_apart_as_vllm_does(case: dict[str, Any]) -> None:
    assert wants_system_first(case["template"]) is case["merges"]


def test_a_late_system_message_stays_where_it_is(tiny: TokenizerFiles) -> None:
    assert rendered(tiny, PLAIN) == "[user]1[assistant]2[system]be brief[user]3"
    assert rendered(tiny, PLAIN, system="S") == "[system]S[user]1[assistant]2[system]be brief[user]3"


def test_unless_the_template_refuses_it(tiny: TokenizerFiles) -> None:
    assert rendered(tiny, STRICT) == "[system]be brief[user]1[assistant]2[user]3"
    assert rendered(tiny, STRICT, system="S. ") == "[system]S. be brief[user]1[assistant]2[user]3"
    # a chat of the other API is refused, by the engine too
    chat = read_prompt(Endpoint.CHAT, {"messages": [LATE[0], {"role": "system", "content": "x"}]})
    with pytest.raises(PromptError, match="at the beginning"):
        ChatRenderer(tiny, RenderOptions(chat_template=STRICT)).render(chat)


def test_or_seems_to_for_want_of_a_function(tiny: TokenizerFiles) -> None:
    assert rendered(tiny, DATED)[4:] == "[system]be brief[user]1[assistant]2[user]3"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ reasoning_effort }} {{ enable_thinking }}", "none False"),
        # these know no effort of that name: refused, or taken for another
        ("{{ {'low': 1, 'high': 2}[reasoning_effort] ~ '' or raise_exception('?') }}", "1"),
        ("{{ reasoning_effort if reasoning_effort in ('low', 'medium', 'high') else 'max' }}", "low"),
        ("{{ 'x' }}", "x"),
    ],
)
def test_thinking_disabled(tiny: TokenizerFiles, template: str, text: str) -> None:
    assert rendered(tiny, template, thinking={"type": "disabled"}) == text
