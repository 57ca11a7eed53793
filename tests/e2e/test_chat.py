"""The main job on a tiny fleet: a chat through the gateway, and the second one where the first one was."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from click.testing import CliRunner
from openai import OpenAI

from gateway.cli.explain import command as explain
from tests.e2e.conftest import Fleet

LONG = "The quick brown fox jumps over the lazy dog, again and again and again. " * 6


def ask(fleet: Fleet, content: str, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)


@pytest.fixture
def client(tiny: Fleet) -> Any:
    with OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_same_prompt_goes_where_it_was_and_comes_from_cache(tiny: Fleet) -> None:
    first = ask(tiny, LONG)
    tiny.settle()
    second = ask(tiny, LONG)
    assert first.status_code == second.status_code == 200
    assert first.headers["x-gateway-matched-tokens"] == "0"
    prompt = first.json()["usage"]["prompt_tokens"]
    reusable = (prompt - 1) // 16 * 16
    assert int(first.headers["x-gateway-prompt-tokens"]) == prompt
    assert second.headers["x-gateway-worker"] == first.headers["x-gateway-worker"]
    assert int(second.headers["x-gateway-matched-tokens"]) == reusable > 0
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == reusable
    assert second.json()["choices"][0]["message"]["role"] == "assistant"


def test_explain_gives_the_reason_before_anything_is_sent(tiny: Fleet) -> None:
    sent = ask(tiny, LONG + "explain me")
    tiny.settle()
    body = {"model": "tiny", "messages": [{"role": "user", "content": LONG + "explain me"}]}
    answer = httpx.post(tiny.admin + "/admin/explain", json=body, trust_env=False).raise_for_status().json()
    prompt = sent.json()["usage"]["prompt_tokens"]
    assert answer["prompt_tokens"] == prompt
    assert answer["blocks"] == (prompt - 1) // 16
    assert answer["chosen"] == sent.headers["x-gateway-worker"]
    assert answer["tokenizer"] == "local"
    assert [w["matched_tokens"] for w in answer["workers"] if w["chosen"]] == [(prompt - 1) // 16 * 16]
    assert {w["state"] for w in answer["workers"]} == {"ready"}


def test_the_command_shows_every_term_of_the_score(tiny: Fleet) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": LONG + "never sent"}]}
    told = CliRunner().invoke(explain, ["--admin-url", tiny.admin], input=json.dumps(body))
    assert told.exit_code == 0, told.output
    terms = ("matched", "uncached", "waiting", "long wait", "overflow", "excess", "requests", "speed")
    terms += ("score", "verdict", "affinity")
    for term in terms:
        assert term in told.output
    whole = CliRunner().invoke(explain, ["--admin-url", tiny.admin, "--json"], input=json.dumps(body))
    answer = json.loads(whole.output)
    for row in answer["workers"]:
        total = (
            row["waiting_tokens"]
            + row["long_wait"]
            + (2 + answer["affinity"]) * max(row["uncached_tokens"], 16)
            + row["overflow_tokens"]
            + row["excess_tokens"] / 2
            + row["decoding_tokens"] / 20
            + 16 * row["requests"]
        )
        assert row["score"] == pytest.approx(total / row["prefill_rate"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"model": "tiny",', "400: the request's body is not valid JSON"),
        (
            '{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}',
            "404: model 'nobody' does not",
        ),
    ],
)
def test_the_command_says_what_is_wrong_in_words(tiny: Fleet, body: str, says: str) -> None:
    told = CliRunner().invoke(explain, ["--admin-url", tiny.admin], input=body)
    assert str(told.exception).startswith(says)
    assert "{" not in str(told.exception)


def test_a_rejected_request_promises_nothing_and_counts_nowhere(tiny: Fleet) -> None:
    def counted() -> list[float]:
        return [tiny.metric(f"gateway_{n}_tokens_total") for n in ("prompt", "reusable", "matched")]

    before = counted()
    too_long = [ask(tiny, "zebra " * 20_000) for _ in range(2)]
    assert [a.status_code for a in too_long] == [400, 400]
    assert [a.headers["x-gateway-matched-tokens"] for a in too_long] == ["0", "0"]
    refused = ask(tiny, "quagga " * 100, max_tokens=0)
    assert refused.status_code == 400
    assert counted() == before
    served = ask(tiny, "quagga " * 100)
    assert served.headers["x-gateway-matched-tokens"] == "0"
    assert served.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_three_counters_lie_side_by_side(tiny: Fleet) -> None:
    names = ("prompt", "reusable", "matched", "cached")
    before = {n: tiny.metric(f"gateway_{n}_tokens_total") for n in names}
    text = "Counted once and counted twice, side by side. " * 8
    prompt = 0
    for _ in range(2):
        prompt = ask(tiny, text).json()["usage"]["prompt_tokens"]
        tiny.settle()
    gained = {n: tiny.metric(f"gateway_{n}_tokens_total") - before[n] for n in names}
    reused = (prompt - 1) // 16 * 16
    # the first of the two may share the template's opening with earlier prompts, promised as delivered
    shared = gained["cached"] - reused
    assert gained["prompt"] == 2 * prompt
    assert gained["reusable"] == gained["matched"] == gained["cached"] == reused + shared
    assert 0 <= shared < 16 * 3


def test_nothing_is_left_in_flight(tiny: Fleet) -> None:
    ask(tiny, "short")
    assert tiny.metric("gateway_inflight_requests") == 0
    assert tiny.metric("gateway_waiting_tokens") == 0
    assert tiny.metric("gateway_decoding_tokens") == 0


def test_openai_client_streams(client: Any) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "count"}],
        max_tokens=6,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    whole = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "count"}],
        max_tokens=6,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 6
    # usage was not asked for, so the gateway's own asking must not show
    assert all(c.usage is None for c in chunks)
    assert all(c.choices for c in chunks)


def test_openai_client_gets_the_usage_it_asks_for(client: Any) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "count"}],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    *_, last = stream
    assert last.choices == []
    assert last.usage.completion_tokens == 6
    assert last.usage.total_tokens == last.usage.prompt_tokens + 6


def test_tools_reach_the_engine(tiny: Fleet, client: Any) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    ask_it = {"model": "tiny", "messages": [{"role": "user", "content": "weather?"}], "max_tokens": 2}
    bare = client.chat.completions.with_raw_response.create(**ask_it)
    tooled = client.chat.completions.with_raw_response.create(**ask_it, tools=[tool])
    for answer in (bare, tooled):
        own = int(answer.headers["x-gateway-prompt-tokens"])
        assert own == answer.parse().usage.prompt_tokens
    assert tooled.parse().usage.prompt_tokens >= bare.parse().usage.prompt_tokens


def test_openai_client_sees_errors_of_the_right_class(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt=[1] * 20_000, max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages="not a list", max_tokens=1)
    models = client.models.list().data
    assert [m.id for m in models] == ["tiny"]
    assert models[0].model_extra["max_model_len"] == 8192


def test_openai_client_has_responses(tiny: Fleet, client: Any) -> None:
    question = "Respond to this, and to nothing else. " * 8
    chat = {"model": "tiny", "messages": [{"role": "user", "content": question}], "max_tokens": 1}
    chatted = client.chat.completions.with_raw_response.create(**chat)
    tiny.settle()
    asked = {"model": "tiny", "input": question, "max_output_tokens": 8, "temperature": 0}
    answer = client.responses.with_raw_response.create(**asked, extra_body={"ignore_eos": True})
    response = answer.parse()
    # the same words by another API are the same prompt
    prompt = chatted.parse().usage.prompt_tokens
    matched = int(answer.headers["x-gateway-matched-tokens"])
    assert answer.headers["x-gateway-worker"] == chatted.headers["x-gateway-worker"]
    assert response.usage.input_tokens == int(answer.headers["x-gateway-prompt-tokens"]) == prompt
    assert response.usage.input_tokens_details.cached_tokens == matched == (prompt - 1) // 16 * 16
    assert response.usage.output_tokens == 8
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = list(client.responses.create(**asked, stream=True, extra_body={"ignore_eos": True}))
    assert [event.type for event in stream[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert stream[-1].type == "response.completed"
    assert text == stream[-1].response.output_text == response.output_text
    # no response is kept: the next turn brings the one before
    turns = [{"role": "user", "content": question}, *response.output, {"role": "user", "content": "And?"}]
    tiny.settle()
    later = client.responses.with_raw_response.create(**{**asked, "input": turns})
    cached = later.parse().usage.input_tokens_details.cached_tokens
    assert cached == int(later.headers["x-gateway-matched-tokens"]) >= matched
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.create(**asked, previous_response_id=response.id)
    with pytest.raises(openai.BadRequestError, match=r"text\.format"):
        client.responses.create(**asked, text={"format": {"type": "json_object"}})


def test_bytes_that_are_no_json_get_an_error_that_says_so(tiny: Fleet) -> None:
    answer = httpx.post(
        tiny.url + "/v1/chat/completions", content=b'{"model": "tiny", "messages": [', trust_env=False
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "JSON" in answer.json()["error"]["message"]


def test_tokenize_is_proxied(tiny: Fleet) -> None:
    answer = httpx.post(tiny.url + "/tokenize", json={"model": "tiny", "prompt": "hello"}, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["count"] == len(answer.json()["tokens"]) > 0


def test_prompt_lists_and_token_ids(tiny: Fleet) -> None:
    body = {"model": "tiny", "prompt": [[5] * 40, [6] * 20], "max_tokens": 1}
    answer = httpx.post(tiny.url + "/v1/completions", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-prompt-tokens"] == "60"
    assert answer.json()["usage"]["prompt_tokens"] == 60
    assert len(answer.json()["choices"]) == 2


def test_the_engine_itself_refuses_what_is_too_long_to_be_tokenised_here(tiny: Fleet) -> None:
    """1.2 million bytes: no token of this vocabulary has more than 64, and no engine takes 18,750 of them."""
    answer = ask(tiny, "zebra " * 200_000)
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]
    # not counted: a token for four characters
    assert 300_000 <= int(answer.headers["x-gateway-prompt-tokens"]) < 300_100
    assert answer.headers["x-gateway-matched-tokens"] == "0"
