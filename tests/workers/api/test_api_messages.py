"""Messages: the chats that bodies become, and the events that an answer becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workers.api.answer import AnswerInfo, Outcome
from workers.api.choice import Delta
from workers.api.errors import BadRequest, InvalidBody
from workers.api.messages_answer import MessagesAnswer
from workers.api.messages_chat import chat_of, prompt_chat
from workers.api.messages_schema import CountTokensBody, MessagesBody, check_body
from workers.api.schema import parse
from workers.api.usage import UsageCount

RECORDED = Path(__file__).parents[2] / "data/vllm/other_apis_v032.json"
HI = {"role": "user", "content": "hi"}
WEATHER = {"name": "weather", "input_schema": {"properties": {}}}
CHAT_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": None, "parameters": {"properties": {}, "type": "object"},
        "strict": None, "defer_loading": None,
    },
}  # fmt: skip


def message_body(**more: Any) -> MessagesBody:
    return parse(json.dumps({"model": "m", "max_tokens": 5, "messages": [HI], **more}).encode(), MessagesBody)


def test_a_messages_fields_are_a_chats() -> None:
    chat = chat_of(
        message_body(
            system=[{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
            stream=True, stop_sequences=["a", "b"], temperature=0.5, top_p=0.9, top_k=7, cache_salt="s",
            chat_template_kwargs={"a": 1}, output_config={"effort": "low"}, metadata={"user_id": "u"},
        )
    )  # fmt: skip
    assert chat.messages == [{"role": "system", "content": "be kind"}, HI]
    assert (chat.max_completion_tokens, chat.stream, chat.stops) == (5, True, ("a", "b"))
    assert (chat.temperature, chat.top_p, chat.top_k, chat.cache_salt) == (0.5, 0.9, 7, "s")
    assert (chat.chat_template_kwargs, chat.reasoning_effort) == ({"a": 1}, "low")
    assert (chat.tools, chat.tool_choice) == (None, None)


@pytest.mark.parametrize(
    ("choice", "becomes"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any", "disable_parallel_tool_use": True}, "required"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tools_and_the_choice_among_them(choice: Any, becomes: Any) -> None:
    chat = chat_of(message_body(tools=[WEATHER], tool_choice=choice))
    assert (chat.tools, chat.tool_choice) == ([CHAT_WEATHER], becomes)


def test_what_this_engine_cannot_do_to_an_answer_is_said() -> None:
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    with pytest.raises(BadRequest, match=r"output_config\.format"):
        chat_of(message_body(output_config=schema))
    thinking = message_body(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    check_body(thinking)
    with pytest.raises(BadRequest, match=r"thinking\.budget_tokens"):
        chat_of(thinking)
    # the prompt is the same
    assert prompt_chat(thinking).messages == [HI]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": ""}, "body.model"),
        ({"max_tokens": 0}, "body.max_tokens"),
        ({"cache_salt": ""}, "body.cache_salt"),
        ({"tool_choice": {"type": "tool"}}, "body.tool_choice"),
        ({"thinking": {"type": "enabled"}}, "body.thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "body"),
        (
            {"system": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "t"}}]},
            "body.system",
        ),
    ],
)
def test_bodies_that_are_wrong_by_themselves(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        check_body(message_body(**more))
    assert refused.value.param == param


def test_counting_needs_no_length() -> None:
    body = parse(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}', CountTokensBody)
    check_body(body)
    assert prompt_chat(body).messages == [HI]
    with pytest.raises(InvalidBody) as refused:
        parse(b'{"model": "m", "messages": []}', MessagesBody)
    assert refused.value.param == "body.max_tokens"


@pytest.mark.parametrize("name", ["message_stream", "message_stop_stream"])
def test_events_are_those_of_vllm_to_the_letter(name: str) -> None:
    """The same text in the same pieces as a recorded stream had."""
    recorded = json.loads(RECORDED.read_text())[name]["answer"]
    events = [json.loads(frame.split("data: ")[1]) for frame in recorded.split("\n\n")[:-1]]
    info = AnswerInfo(events[0]["message"]["id"], 0, "tiny-llama", "", text_of=str, report_cached=True)
    answer = MessagesAnswer(info, prompt_tokens=131, block_size=16)
    usage = UsageCount([131], 1)
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    end = ("stop", "\n") if name == "message_stop_stream" else ("length", None)
    deltas = [Delta(0, text, (1,), 128) for text in texts[:-1]]
    deltas.append(Delta(0, texts[-1] if texts else "", (1,), 128, None, *end))  # type: ignore[arg-type]
    ours = []
    for delta in deltas:
        usage.add(delta)
        ours += answer.chunks(delta)
    ours += answer.ending(usage)
    frames = [f"event: {e['type']}\ndata: {json.dumps(e, separators=(',', ':'))}\n\n" for e in ours]
    assert "".join(frames) == recorded


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", 2, ("end_turn", None)),  # a stop token, no sequence
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("abort", None, (None, None)),
    ],
)
def test_how_it_ended(finish: Any, stop: Any, expected: Any) -> None:
    info = AnswerInfo("id", 0, "m", "", text_of=str, report_cached=False)
    outcome = Outcome("text", [1, 2], finish_reason=finish, stop_reason=stop)
    usage = UsageCount([40], 1, completion_tokens=2)
    message = MessagesAnswer(info, 40, 16).full([outcome], usage)
    assert (message.get("stop_reason"), message.get("stop_sequence")) == expected
    # an engine that does not tell what was cached
    assert message["usage"] == {"input_tokens": 40, "output_tokens": 2}
