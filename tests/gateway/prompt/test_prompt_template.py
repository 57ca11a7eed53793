from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Any

import jinja2
import pytest

from gateway.prompt.base import PromptError
from gateway.prompt.formats import detect_content_format
from gateway.prompt.template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **kwargs: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or USER, **kwargs)


def test_whitespace_control_is_that_of_transformers() -> None:
    assert render("{% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"


def test_tojson_keeps_unicode_markup_and_order() -> None:
    assert render("{{ tools | tojson }}", tools=[{"z": "é<&>'", "a": None}]) == '[{"z": "é<&>\'", "a": null}]'
    assert render("{{ tools | tojson(indent=1, sort_keys=true) }}", tools={"b": 1, "a": 2}) == (
        '{\n "a": 2,\n "b": 1\n}'
    )


def test_nothing_is_escaped() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "<a> & 'b'"}]) == "<a> & 'b'"


def test_variables_win_over_special_tokens() -> None:
    assert render("{{ bos_token }}") == "<s>"
    assert render("{{ bos_token }}", variables={"bos_token": "!"}) == "!"


def test_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: datetime(2026, 2, 3))
    assert template.render(USER) == "03 Feb 2026"


def test_generation_tag_and_loop_controls() -> None:
    body = "{% if i == 2 %}{% break %}{% endif %}{% generation %}{{ i }}{% endgeneration %}"
    assert render("{% for i in range(9) %}" + body + "{% endfor %}") == "01"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ undefined_thing.attribute }}",
        "{{ 1 // 0 }}",
        "{{ messages[7]['content'] + 'x' }}",
        "{{ unknown | tojson }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_errors_inside_a_template_are_the_prompts_fault(source: str) -> None:
    with pytest.raises(PromptError):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{% nosuchtag %}", "{{ x | nosuchfilter }}"])
def test_what_does_not_compile_says_so(source: str) -> None:
    with pytest.raises(PromptError, match="does not compile"):
        ChatTemplate(source, {})


def test_no_messages() -> None:
    with pytest.raises(PromptError):
        ChatTemplate("x", {}).render([])


def test_output_is_bounded() -> None:
    template = ChatTemplate("{% for i in range(1000) %}{{ 'x' * 10 }}{% endfor %}", {}, max_chars=9_999)
    with pytest.raises(PromptError, match="too much"):
        template.render(USER)
    longer = ChatTemplate("{% for i in range(1000) %}{{ 'x' * 10 }}{% endfor %}", {}, max_chars=10_000)
    assert len(longer.render(USER)) == 10_000


def test_time_is_bounded() -> None:
    ticks: Iterator[int] = count()
    template = ChatTemplate(
        "{% for i in range(99) %}{{ i }}{% endfor %}", {}, clock=lambda: float(next(ticks)), max_seconds=50
    )
    with pytest.raises(PromptError, match="too long"):
        template.render(USER)


MACRO = "{% macro f(p) %}{% for c in p %}x{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.content | list %}x{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for c in m.content %}x{% endfor %}{% endfor %}", "openai"),
        ("{% set a = messages %}{% for m in a %}{% for c in m.content %}x{% endfor %}{% endfor %}", "openai"),
        ("{% set content = messages[0].content %}{% for c in content %}x{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}{% endfor %}", "string"),
        (MACRO + "{% for m in messages %}{{ f(m.content) }}{% endfor %}", "openai"),
        (MACRO + "{% for m in messages %}{{ f(p=m.content) }}{% endfor %}", "openai"),
        (MACRO + "{% for m in messages %}{{ f(m.name) }}{% endfor %}", "string"),
        (MACRO.replace("p", "content") + "{{ f(1) }}", "string"),
        ("{% for i, m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}", "string"),
        ("{% set a, b = messages[:2] %}{% for c in content %}x{% endfor %}", "string"),
        ("{% for m in others %}{% for c in m.content %}x{% endfor %}{% endfor %}", "string"),
        ("plain", "string"),
    ],
)
def test_content_format(source: str, expected: str) -> None:
    # the expected values are what vLLM's own detection says of these sources
    assert detect_content_format(jinja2.Environment(autoescape=True).parse(source)) == expected


CHATML = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
TRIMMED = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (CHATML, "Once upon", "[user]hi[end][assistant]Once upon"),
        (CHATML, "Once upon ", "[user]hi[end][assistant]Once upon "),
        (TRIMMED, "Once upon ", "[user]hi[end][assistant]Once upon"),
        (TRIMMED, "hi", "[user]hi[end][assistant]hi"),
    ],
)
def test_final_message_is_left_open(source: str, content: str, expected: str) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]
    template = ChatTemplate(source, {})
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == expected
    assert messages[-1] == {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("source", "content"),
    [(CHATML, None), (CHATML, []), ("fixed", "x"), ("{{ messages[0].content }}", "later")],
)
def test_final_message_that_cannot_be_continued(source: str, content: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": content}]
    with pytest.raises(PromptError):
        ChatTemplate(source, {}).render(messages, add_generation_prompt=False, continue_final_message=True)
