"""An engine that fails under its requests: they end with an error, and health says so from then on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from gateway.prompt.base import PromptError, PromptRequest
from workers.api.app import make_app
from workers.api.generation import Generation
from workers.api.models import ServedModels
from workers.api.prompts import Prompts
from workers.api.service import Service
from workers.async_engine import AsyncEngine
from workers.engine import Engine
from workers.metrics import EngineMetrics
from workers.types import EngineConfig, Sampled, StepItem

TOKENIZER = Path(__file__).parents[2] / "data/tokenizers/vllm-tiny/tokenizer.json"


class FailsAtThirdToken:
    vocab_size = 1000
    eos_token_ids: frozenset[int] = frozenset()

    def execute(self, items: Sequence[StepItem]) -> list[Sampled | None]:
        if len(items[0].output_token_ids) == 2:
            raise RuntimeError("out of memory")
        return [Sampled(400) for _ in items]


@pytest.fixture
def template() -> list[str]:
    """What every chat becomes, if anything."""
    return []


@pytest.fixture
async def client(template: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    def render(_: PromptRequest) -> str:
        if not template:
            raise PromptError("this model has no chat template")
        return template[0]

    config = EngineConfig(model="m", max_model_len=256, num_blocks=64)
    async with AsyncEngine(Engine(config, FailsAtThirdToken())) as engine:
        models = ServedModels(["m"], [], "/m", config.max_model_len, created=1)
        prompts = Prompts(Tokenizer.from_file(str(TOKENIZER)), render, 1000, config.max_model_len)
        metrics = EngineMetrics(config, engine.stats, time.monotonic)
        generation = Generation(
            engine, prompts, models, metrics, 16, "f", report_cached=True, now=time.time, new_id=lambda: "1"
        )
        service = Service(engine, prompts, models, metrics, lambda: generation.in_flight, "0", {})
        transport = httpx.ASGITransport(make_app(generation, service))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            yield client


@pytest.mark.anyio
async def test_an_answer_in_progress_ends_with_500(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    answer = await client.post("/v1/completions", json={"model": "m", "prompt": [1, 2, 3]})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("InternalServerError", 500, None)
    assert "out of memory" in error["message"]
    assert (await client.get("/health")).status_code == 503
    assert (await client.post("/v1/completions", json={"model": "m", "prompt": [1]})).status_code == 500
    assert (await client.post("/reset_prefix_cache")).status_code == 500
    metrics = (await client.get("/metrics")).text
    assert 'request_success_total{engine="0",finished_reason="error",model_name="m"} 2.0' in metrics


@pytest.mark.anyio
async def test_a_stream_in_progress_ends_with_an_error_event(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": "m", "prompt": [1, 2, 3], "stream": True})
    assert answer.status_code == 200
    frames = [frame.removeprefix("data: ") for frame in answer.text.split("\n\n")]
    assert len(frames) == 5  # two tokens, the error, [DONE], and what follows the last separator
    assert json.loads(frames[2])["error"]["code"] == 500
    assert frames[3:] == ["[DONE]", ""]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "fields", "before", "error"),
    [
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
            ["message_start", "content_block_start", "content_block_delta", "content_block_delta"],
            {"type": "error", "error": {"type": "internal_error"}},
        ),
        (
            "/v1/responses",
            {"input": "x"},
            [
                "response.created", "response.in_progress", "response.output_item.added",
                "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
            ],
            {"type": "error", "code": "500", "param": None, "sequence_number": 6},
        ),
    ],
)  # fmt: skip
async def test_streams_of_the_other_apis_end_with_their_error_event(
    template: list[str], client: httpx.AsyncClient, path: str, fields: dict[str, Any], before: list[str],
    error: dict[str, Any],
) -> None:  # fmt: skip
    template.append("hello")
    answer = await client.post(path, json={"model": "m", **fields, "stream": True})
    *frames, last = answer.text.split("\n\n")
    assert last == ""
    assert [frame.split("\n")[0].removeprefix("event: ") for frame in frames] == [*before, "error"]
    told = json.loads(frames[-1].split("data: ")[1])
    assert "out of memory" in (told.pop("message", None) or told["error"].pop("message"))
    assert told == error


@pytest.mark.anyio
async def test_a_message_in_progress_ends_with_500(template: list[str], client: httpx.AsyncClient) -> None:
    template.append("hello")
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 500
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "InternalServerError"


@pytest.mark.anyio
async def test_a_model_without_a_template_refuses_chats(client: httpx.AsyncClient) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "this model has no chat template")
