"""The official anthropic client through a whole gateway to the engines that come with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import pytest

from tests.e2e.conftest import Fleet

SYSTEM = "You are a careful assistant. Answer in short sentences, and cite the manual. " * 5
WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def client(tiny: Fleet) -> Iterator[anthropic.Anthropic]:
    # without TLS, whose certificates would take most of a test's time to load
    transport = httpx2.Client(trust_env=False, timeout=60, verify=False)
    with anthropic.Anthropic(base_url=tiny.url, api_key="none", max_retries=0, http_client=transport) as own:
        yield own


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def body(text: str, **more: Any) -> dict[str, Any]:
    # the client has no argument for it
    greedy = {"temperature": 0}
    return {"model": "tiny", "max_tokens": 6, "messages": [user(text)], "extra_body": greedy, **more}


def figures(answer: Any) -> tuple[str, int, int, int, int]:
    """(worker, prompt tokens and matched tokens as the gateway says, the same two as the engine counts)."""
    usage = answer.parse().usage
    created, cached = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
    said = [int(answer.headers[f"x-gateway-{name}-tokens"]) for name in ("prompt", "matched")]
    return answer.headers["x-gateway-worker"], *said, usage.input_tokens + created + cached, cached


def test_a_message_and_its_end_at_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**body("count"))
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert [block.type for block in message.content] == ["text"]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.usage.output_tokens == 6


def test_every_turn_finds_what_the_one_before_left_and_is_told_so_beforehand(
    tiny: Fleet, client: anthropic.Anthropic
) -> None:
    turns = [user("What is a block? Say it " + "slowly, " * 20)]
    system: Any = [{"type": "text", "text": SYSTEM}]
    seen = []
    for question in ("And a page?", "And a frame?", "Thank you."):
        answer = client.messages.with_raw_response.create(**body("", system=system, messages=turns))
        seen.append(figures(answer))
        tiny.settle()
        turns += [
            {"role": "assistant", "content": answer.parse().content},
            {
                "role": "user",
                "content": [{"type": "text", "text": question}, {"type": "text", "text": "Short."}],
            },
        ]
    workers, prompts, promised, counted, cached = zip(*seen, strict=True)
    assert len(set(workers)) == 1
    assert prompts == counted
    assert promised == cached
    assert cached[0] == 0
    for earlier, later in zip(prompts, cached[1:], strict=False):
        # all full blocks of the prompt before, and perhaps some of its answer
        assert later >= earlier // 16 * 16 - 16
        assert later > 100


def test_a_chat_and_a_message_of_the_same_words_are_one_prompt(
    tiny: Fleet, client: anthropic.Anthropic
) -> None:
    question = "The same words in another dialect. " * 10
    chat = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "system", "content": SYSTEM}, user(question)],
    }
    first = httpx.post(tiny.url + "/v1/chat/completions", json=chat, trust_env=False, timeout=60)
    tiny.settle()
    answer = client.messages.with_raw_response.create(**body(question, system=SYSTEM))
    prompt = first.json()["usage"]["prompt_tokens"]
    found = (prompt - 1) // 16 * 16
    assert figures(answer) == (first.headers["x-gateway-worker"], prompt, found, prompt, found)


def test_a_stream_says_what_the_whole_answer_says(tiny: Fleet, client: anthropic.Anthropic) -> None:
    asked = body("Say something long. " * 10, max_tokens=24)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    tiny.settle()
    whole = client.messages.create(**asked)
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert streamed.content[0].text == text  # type: ignore[union-attr]
    assert (streamed.stop_reason, whole.stop_reason) == ("max_tokens", "max_tokens")
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 24
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_ends_the_text_before_it(client: anthropic.Anthropic) -> None:
    asked = body("Say something long. " * 10, max_tokens=24)
    text: str = client.messages.create(**asked).content[0].text  # type: ignore[union-attr]
    stop = text[10:14]
    message = client.messages.create(**asked, stop_sequences=["never seen", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]
    with client.messages.stream(**asked, stop_sequences=[stop]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    assert final.content[0].text == message.content[0].text  # type: ignore[union-attr]


def test_tokens_are_counted_without_an_answer(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": "tiny", "messages": [user("weather?")], "system": SYSTEM}
    bare = client.messages.count_tokens(**fields).input_tokens
    tooled = client.messages.count_tokens(**fields, tools=[WEATHER]).input_tokens
    assert tooled > bare
    for more, count in (({}, bare), ({"tools": [WEATHER]}, tooled)):
        answer = client.messages.with_raw_response.create(**fields, **more, max_tokens=1)
        _, prompt, _, counted, _ = figures(answer)
        assert prompt == counted == count


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_tokens": 0}, "max_tokens must be positive"),
        ({"extra_body": {"temperature": 3}}, "temperature must be in"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [user("zebra " * 20_000)]}, "maximum context length is 8192"),
        ({"stop_sequences": [""]}, "stop cannot contain an empty string"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "thinking"),
    ],
)
def test_what_the_engine_refuses_is_a_bad_request(
    client: anthropic.Anthropic, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=says):
        client.messages.create(**body("hi") | more)


def test_a_model_that_nobody_serves(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="tiny"):
        client.messages.count_tokens(model="nobody", messages=[user("hi")])
