"""Responses: the chats that bodies become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workers.api.errors import BadRequest
from workers.api.responses_schema import ResponsesBody, chat_of, check_body
from workers.api.schema import parse

HI = {"role": "user", "content": "hi"}


def response_body(**more: Any) -> ResponsesBody:
    return parse(json.dumps({"model": "m", "input": "hi", **more}).encode(), ResponsesBody)


def test_a_responses_fields_are_a_chats() -> None:
    items = [HI, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "and?"}]
    chat = chat_of(
        response_body(
            input=items, instructions="be kind", max_output_tokens=9, temperature=0.5, top_p=0.9, seed=3,
            stop="x", truncation="auto", reasoning={"effort": "low"}, stream=True, cache_salt="s",
        )
    )  # fmt: skip
    assert chat.messages == [{"role": "system", "content": "be kind"}, *items]
    assert (chat.max_tokens, chat.length_field, chat.stops) == (9, "max_output_tokens", ("x",))
    assert (chat.temperature, chat.top_p, chat.seed, chat.cache_salt) == (0.5, 0.9, 3, "s")
    assert (chat.truncate_prompt_tokens, chat.reasoning_effort, chat.stream) == (-1, "low", True)
    assert (chat.tools, chat.tool_choice) == (None, None)
    assert (chat.add_generation_prompt, chat.continue_final_message) == (True, False)


def test_a_responses_tools_are_a_chats() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    chat = chat_of(response_body(tools=[tool], tool_choice={"type": "function", "name": "f"}))
    function = {"name": "f", "parameters": {"type": "object"}}
    assert chat.tools == [{"type": "function", "function": function}]
    assert chat.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert chat_of(response_body(tools=[tool], tool_choice="none")).tool_choice == "none"
    assert chat_of(response_body(tool_choice="auto")).tool_choice is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_p": 0.1}, "min_p"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ],
)
def test_what_a_response_cannot_have_is_named(more: dict[str, Any], param: str) -> None:
    check_body(response_body(text={"format": {"type": "text"}}, include=[], background=False))
    with pytest.raises(BadRequest) as refused:
        check_body(response_body(**more))
    assert refused.value.param == param
