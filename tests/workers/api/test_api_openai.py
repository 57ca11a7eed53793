"""The official OpenAI client against a model that computes (tiny, greedy unless said otherwise)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Tell me about pages and blocks."}]
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
IDS = [(7 * i) % 1000 + 10 for i in range(100)]


@pytest.fixture(scope="module")
def client(tiny: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    extra = fields.pop("extra_body", {})
    fields = {"model": "tiny-llama", "max_tokens": 12, "temperature": 0} | fields
    return client.completions.create(**fields, extra_body=extra)


def test_a_chat_streams_the_text_it_answers_at_once(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    assert whole.object == "chat.completion"
    assert whole.id.startswith("chatcmpl-")
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    with client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=20, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    ) as stream:  # fmt: skip
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    # role, 20 tokens, usage
    assert len(chunks) == 22
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_second_of_two_prompts_of_100_tokens_finds_96(client: openai.OpenAI) -> None:
    first = complete(client, prompt=IDS, max_tokens=1, extra_body={"cache_salt": "cached"})
    second = complete(client, prompt=IDS, max_tokens=1, extra_body={"cache_salt": "cached"})
    exact = complete(client, prompt=IDS[:96], max_tokens=1, extra_body={"cache_salt": "cached"})
    other_salt = complete(client, prompt=IDS, max_tokens=1, extra_body={"cache_salt": "other"})
    found = [a.usage.prompt_tokens_details.cached_tokens for a in (first, second, exact, other_salt)]
    assert found == [0, 96, 80, 0]
    assert [a.usage.prompt_tokens for a in (first, second, exact, other_salt)] == [100, 100, 96, 100]


def test_an_adapter_shares_no_block_with_its_base(client: openai.OpenAI) -> None:
    salt = {"cache_salt": "adapters"}
    answers = [
        complete(client, model=model, prompt=IDS, max_tokens=1, extra_body=salt)
        for model in ("tiny-llama", "legal", "legal")
    ]
    assert [a.model for a in answers] == ["tiny-llama", "legal", "legal"]
    assert [a.usage.prompt_tokens_details.cached_tokens for a in answers] == [0, 0, 96]


def test_texts_lists_and_token_ids_are_one_prompt_each(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    text = complete(client, prompt="def main():", extra_body=extra).choices[0]
    as_ids = complete(client, prompt=text.prompt_token_ids, extra_body=extra).choices[0]
    assert (as_ids.text, as_ids.token_ids) == (text.text, text.token_ids)
    texts = complete(client, prompt=["def main():", "import os"], extra_body=extra)
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert texts.choices[0].text == text.text
    lists = complete(client, prompt=[choice.prompt_token_ids for choice in texts.choices], extra_body=extra)
    assert [c.text for c in lists.choices] == [c.text for c in texts.choices]
    lengths = [len(choice.prompt_token_ids) for choice in texts.choices]
    assert texts.usage.prompt_tokens == sum(lengths)
    assert texts.usage.completion_tokens == sum(len(choice.token_ids) for choice in texts.choices)


def test_two_choices_are_seeded_apart_and_repeatable(client: openai.OpenAI) -> None:
    fields = {"prompt": "import ", "n": 2, "temperature": 1.0, "seed": 5, "max_tokens": 16}
    one, two = complete(client, **fields), complete(client, **fields)
    assert [choice.index for choice in one.choices] == [0, 1]
    assert one.choices[0].text != one.choices[1].text
    assert [choice.text for choice in one.choices] == [choice.text for choice in two.choices]
    # the prompt counts once, however many choices
    assert one.usage.prompt_tokens == complete(client, prompt="import ").usage.prompt_tokens
    # a choice is what a request of its own with the next seed would be
    assert complete(client, **fields | {"n": 1, "seed": 6}).choices[0].text == one.choices[1].text
    with complete(client, **fields, stream=True) as stream:
        texts = ["", ""]
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in one.choices]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    fields = {"prompt": "class Block:", "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    text = complete(client, **fields).choices[0].text
    stop = text[12:17]  # begins and ends inside of tokens, most likely
    expected = text[: text.index(stop)]
    stopped = complete(client, **fields, stop=stop).choices[0]
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (expected, "stop", stop)
    with complete(client, **fields, stop=["never seen", stop], stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == expected
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)
    extra = {"ignore_eos": True, "include_stop_str_in_output": True}
    kept = complete(client, **fields | {"extra_body": extra}, stop=stop).choices[0]
    assert kept.text == expected + stop


def test_a_stop_token_is_counted_and_not_shown(client: openai.OpenAI) -> None:
    ids = {"return_token_ids": True, "ignore_eos": True}
    free = complete(client, prompt=IDS[:20], extra_body=ids).choices[0]
    at = next(i for i, token in enumerate(free.token_ids) if token not in free.token_ids[:i] and i > 1)
    extra = ids | {"stop_token_ids": [free.token_ids[at]]}
    ended = complete(client, prompt=IDS[:20], extra_body=extra).choices[0]
    assert ended.token_ids == free.token_ids[: at + 1]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", free.token_ids[at])
    before = complete(client, prompt=IDS[:20], max_tokens=at, extra_body=ids).choices[0]
    assert ended.text == before.text


def test_logprobs_of_completions(client: openai.OpenAI) -> None:
    choice = complete(client, prompt="import os", logprobs=3, max_tokens=6).choices[0]
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset)
    assert told.text_offset[0] == 0
    assert (
        told.text_offset[1:]
        == [offset + len(token) for offset, token in zip(told.text_offset, told.tokens, strict=True)][:-1]
    )
    for token, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert value <= 0
        assert top[token] == value
        # greedy: the chosen token is the most likely one
        assert value == max(top.values())


def test_logprobs_of_chats(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": "tiny-llama", "messages": MESSAGES, "max_tokens": 5, "temperature": 0,
        "logprobs": True, "top_logprobs": 2, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.chat.completions.create(**fields).choices[0].logprobs.content
    assert len(whole) == 5
    for entry in whole:
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert bytes(entry.bytes).decode() == entry.token
    with client.chat.completions.create(**fields, stream=True) as stream:
        parts = [chunk.choices[0].logprobs.content for chunk in stream if chunk.choices[0].logprobs]
    assert [part[0].token for part in parts] == [entry.token for entry in whole]


def test_tools_are_in_the_prompt(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny-llama", "messages": MESSAGES, "max_tokens": 1, "temperature": 0}
    plain = client.chat.completions.create(**fields)
    with_tools = client.chat.completions.create(**fields, tools=[TOOL], tool_choice="auto")
    assert plain.usage is not None
    assert with_tools.usage is not None
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens
    calls: Any = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]  # fmt: skip
    answer = client.chat.completions.create(**fields | {"messages": calls}, tools=[TOOL])
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            **fields, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}
        )
    assert refused.value.param == "tool_choice"


def test_a_chat_without_max_tokens_may_use_the_rest_of_the_context(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_completions_have_16_tokens_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny-llama", prompt="a", temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_echo_repeats_the_prompt(client: openai.OpenAI) -> None:
    plain = complete(client, prompt="def f():")
    assert (
        complete(client, prompt="def f():", echo=True).choices[0].text == "def f():" + plain.choices[0].text
    )
    assert complete(client, prompt="def f():", echo=True, max_tokens=0).choices[0].text == "def f():"


def test_truncation_keeps_the_end_of_the_prompt(client: openai.OpenAI) -> None:
    extra = {"truncate_prompt_tokens": 5, "return_token_ids": True}
    assert complete(client, prompt=IDS, extra_body=extra).choices[0].prompt_token_ids == IDS[-5:]
    extra |= {"truncation_side": "right"}
    assert complete(client, prompt=IDS, extra_body=extra).choices[0].prompt_token_ids == IDS[:5]


def test_the_final_message_can_be_continued(client: openai.OpenAI) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "A page is"}]
    extra = {"add_generation_prompt": False, "continue_final_message": True, "return_token_ids": True}
    answer: Any = client.chat.completions.create(
        model="tiny-llama", messages=messages, max_tokens=1, temperature=0, extra_body=extra
    )
    tail = complete(client, prompt=" is", extra_body={"return_token_ids": True}).choices[0].prompt_token_ids
    assert answer.prompt_token_ids[-len(tail) :] == tail


def test_the_request_id_of_a_client_is_kept(client: openai.OpenAI) -> None:
    headers = {"X-Request-Id": "my-req-1"}
    answers = [
        client.completions.create(model="tiny-llama", prompt="a", max_tokens=1, extra_headers=headers)
        for _ in range(2)
    ]
    assert [answer.id for answer in answers] == ["cmpl-my-req-1"] * 2


def test_models_say_how_long_a_prompt_may_be_and_whose_adapter_they_are(client: openai.OpenAI) -> None:
    base, adapter = (model.model_dump() for model in client.models.list().data)
    assert (base["id"], base["max_model_len"], base["parent"]) == ("tiny-llama", 512, None)
    assert (adapter["id"], adapter["max_model_len"], adapter["parent"]) == ("legal", None, "tiny-llama")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 2}, "n"),  # greedy: all choices would be alike
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"extra_body": {"cache_salt": "a/b"}}, "cache_salt"),
        ({"extra_body": {"min_tokens": 13}}, "min_tokens"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format"),
        ({"extra_body": {"stream_options": {"include_usage": True}}}, "stream_options"),
        ({"extra_body": {"truncate_prompt_tokens": 513}}, "truncate_prompt_tokens"),
        ({"prompt": [[1, 2], "x"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": {"a": 1}}, "body.prompt"),
        ({"prompt": [[1, "a"]]}, "body.prompt.0.1"),
        ({"stop": 5}, "body.stop"),
    ],
)
def test_bad_values_are_named(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, **{"prompt": "x"} | fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "body.messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            "tool_choice",
        ),
        ({"extra_body": {"chat_template": "{{ x }}"}}, "chat_template"),
    ],
)
def test_bad_chats_are_named(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "tiny-llama", "messages": MESSAGES} | fields)
    assert refused.value.param == param


def test_unknown_models_and_unknown_fields(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        complete(client, prompt="x", model="gpt-9")
    assert missing.value.param == "model"
    assert complete(client, prompt="x", extra_body={"not_a_field": 1, "user": "u"}).choices[0].text != ""


def test_a_body_must_say_that_it_is_json(tiny: Any) -> None:
    answer = httpx.post(f"{tiny.url}/v1/completions", content=b"{}", trust_env=False)
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]
