"""The Messages and Responses APIs through the whole gateway: affinity, the official clients, their errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.faults import SSE_HEAD, FaultyEngine, Script, Turn, answers, chunk, hangs, raw
from tests.gateway.api.rig import http
from tests.gateway.api.whole import whole

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


LONG = "The quick brown fox jumps over the lazy dog. " * 60
USAGE = {"input_tokens": 20, "output_tokens": 2, "cache_read_input_tokens": 80}
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "hello"}], "usage": USAGE,
}  # fmt: skip


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


MESSAGE_EVENTS = [
    event("message_start", message={**MESSAGE, "content": [], "stop_reason": None}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hel"}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"}),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=USAGE),
    event("message_stop"),
]


async def answers_messages(turn: Turn) -> None:
    asked = turn.seen.json()
    script: Script = answers(json.dumps(MESSAGE).encode())
    if turn.seen.target.endswith("count_tokens"):
        script = answers(b'{"input_tokens": 100}')
    elif asked.get("stream"):
        script = raw(SSE_HEAD, *map(chunk, MESSAGE_EVENTS), b"0\r\n\r\n", then="keep")
    await script(turn)


def client_of(url: str) -> anthropic.AsyncAnthropic:
    # without TLS, whose certificates would take most of a test's time to load
    transport = httpx2.AsyncClient(trust_env=False, timeout=20, verify=False)
    return anthropic.AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0, http_client=transport)


async def test_the_anthropic_clients_everyday_use() -> None:
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    tools: list[Any] = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    async with (
        FaultyEngine(answers_messages, model="m") as engine,
        whole(engine.url) as gateway,
        client_of(gateway.url) as client,
    ):
        whole_answer = await client.messages.create(
            model="m", max_tokens=5, messages=asked, system="be kind", tools=tools
        )
        assert whole_answer.content[0].text == "hello"  # type: ignore[union-attr]
        assert whole_answer.usage.cache_read_input_tokens == 80
        assert engine.seen[0].json()["tools"] == tools
        assert "sk-test" in "".join(value for _, value in engine.seen[0].headers)
        async with client.messages.stream(model="m", max_tokens=5, messages=asked) as stream:
            assert "".join([text async for text in stream.text_stream]) == "hello"
            assert (await stream.get_final_message()).usage.output_tokens == 2
        counted = await client.messages.count_tokens(model="m", messages=asked)
        assert counted.input_tokens == 100
        with pytest.raises(anthropic.NotFoundError, match="there are: m"):
            await client.messages.create(model="nope", max_tokens=5, messages=asked)
        await gateway.records(4)
        found = gateway.app.metrics.registry.get_sample_value
        labels = {"model": "m", "worker": engine.url}
        # of two answers, each with 100 tokens of input of which 80 came from the cache
        assert found("gateway_cached_tokens_total", labels) == 160
        assert found("gateway_reported_prompt_tokens_total", labels) == 200


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answers(b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}', 400),
         anthropic.BadRequestError),
        (answers(b"{}", 429), anthropic.RateLimitError),
        (raw(then="reset"), anthropic.InternalServerError),
    ],
)  # fmt: skip
async def test_the_anthropic_client_raises_the_right_class(
    script: Script, error: type[anthropic.APIError]
) -> None:
    async with (
        FaultyEngine(script, model="m") as engine,
        whole(engine.url) as gateway,
        client_of(gateway.url) as client,
    ):
        with pytest.raises(error):
            await client.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )


@pytest.mark.parametrize(
    ("script", "model", "status", "kind"),
    [
        (raw(then="reset"), "nope", 404, "not_found_error"),
        (raw(then="reset"), "m" * 3000, 413, "request_too_large"),
        (raw(then="reset"), "m", 502, "api_error"),
        (hangs(), "m", 504, "timeout_error"),
    ],
)
async def test_errors_of_ours_have_the_messages_apis_types(
    script: Script, model: str, status: int, kind: str
) -> None:
    """https://docs.anthropic.com/en/api/errors"""
    async with (
        FaultyEngine(script, model="m") as engine,
        whole(engine.url, max_body_bytes=2000, whole_answer_timeout=0.1) as gateway,
        http() as client,
    ):
        body = {"model": model, "max_tokens": 5, "messages": []}
        answer = await client.post(gateway.url + "/v1/messages", json=body)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
        assert answer.json()["error"]["type"] == kind


@pytest.mark.parametrize("path", ["/nope", "/v1/messages", "/v1/models/nope"])
async def test_a_page_of_a_named_origin_can_read_errors_and_caches_know(path: str) -> None:
    async with (
        FaultyEngine(raw(then="reset"), model="m") as engine,
        whole(engine.url, cors_origins=("https://a.example",)) as gateway,
        http() as client,
    ):
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            answer = await client.get(gateway.url + path, headers={"origin": origin})
            assert answer.status_code >= 400
            assert answer.headers["vary"] == "Origin"
            assert answer.headers.get("access-control-allow-origin") == allowed


async def test_a_message_stream_that_dies_is_an_error_to_the_anthropic_client() -> None:
    script = raw(SSE_HEAD, *map(chunk, MESSAGE_EVENTS[:3]), then="reset")
    async with (
        FaultyEngine(script, model="m") as engine,
        whole(engine.url) as gateway,
        client_of(gateway.url) as client,
    ):
        stream = await client.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(anthropic.APIStatusError, match="inside an answer"):
            [part async for part in stream]


RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "hello", "annotations": []}]}],
    "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 80}, "output_tokens": 2,
              "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 102},
}  # fmt: skip
RESPONSE_EVENTS = [
    event("response.created", sequence_number=0,
          response={**RESPONSE, "status": "in_progress", "usage": None}),
    event("response.output_text.delta", sequence_number=1, item_id="msg_1", output_index=0, content_index=0,
          delta="hello", logprobs=[]),
    event("response.completed", sequence_number=2, response=RESPONSE),
]  # fmt: skip


async def answers_responses(turn: Turn) -> None:
    whole_answer = answers(json.dumps(RESPONSE).encode())
    streamed = raw(SSE_HEAD, *map(chunk, RESPONSE_EVENTS), b"0\r\n\r\n", then="keep")
    await (streamed if turn.seen.json().get("stream") else whole_answer)(turn)


async def test_the_openai_clients_responses() -> None:
    async with (
        FaultyEngine(answers_responses, model="m") as engine,
        whole(engine.url) as gateway,
        openai.AsyncOpenAI(
            base_url=gateway.url + "/v1", api_key="sk-test", max_retries=0, http_client=http()
        ) as client,
    ):
        assert (await client.responses.create(model="m", input="hi")).output_text == "hello"
        stream = await client.responses.create(model="m", input="hi", stream=True)
        assert [part.type async for part in stream][-1] == "response.completed"
        # what they asked for is what the engine got
        assert engine.seen[1].json() == {"model": "m", "input": "hi", "stream": True}
        await gateway.records(2)
        labels = {"model": "m", "worker": engine.url}
        assert gateway.app.metrics.registry.get_sample_value("gateway_cached_tokens_total", labels) == 160


@pytest.mark.parametrize(
    ("path", "first", "later"),
    [
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": LONG}]},
            {"max_tokens": 5, "messages": [{"role": "user", "content": LONG},
                                           {"role": "assistant", "content": "hello"},
                                           {"role": "user", "content": "and now?"}]},
        ),
        (
            "/v1/responses",
            {"input": LONG},
            {"input": [{"role": "user", "content": LONG}, {"role": "assistant", "content": "hello"},
                       {"role": "user", "content": "and now?"}]},
        ),
    ],
)  # fmt: skip
async def test_the_next_turn_goes_where_the_first_one_went(path: str, first: Any, later: Any) -> None:
    """By affinity: of four workers, one has seen the prefix; other prompts spread."""
    script = answers_messages if path == "/v1/messages" else answers_responses
    async with (
        FaultyEngine(script, model="m") as a,
        FaultyEngine(script, model="m") as b,
        FaultyEngine(script, model="m") as c,
        whole(a.url, b.url, c.url) as gateway,
        http() as client,
    ):
        asked = await client.post(gateway.url + path, json={"model": "m", **first})
        assert int(asked.headers["x-gateway-prompt-tokens"]) > 30
        for _ in range(5):
            answer = await client.post(gateway.url + path, json={"model": "m", **later})
            assert answer.headers["x-gateway-worker"] == asked.headers["x-gateway-worker"]
            assert int(answer.headers["x-gateway-matched-tokens"]) > 30
