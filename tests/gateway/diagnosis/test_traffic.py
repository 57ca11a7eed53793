"""What the admin port says of traffic: from records and encoders to JSON, and back to facts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from gateway.api.advice import advice_routes
from gateway.api.record import RequestRecord
from gateway.api.timed_encoders import timed
from gateway.api.traffic import PERIOD_S, Traffic
from gateway.diagnosis.divergence import head_of
from gateway.diagnosis.facts import traffic_facts
from gateway.errors import InvalidRequest
from gateway.fleet.load import LoadBoard
from gateway.fleet.registry import Registry
from gateway.fleet.worker import WorkerSpec
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.meters import Counter, Histogram
from gateway.prompt.base import Endpoint, PromptRequest, TokenPrompt
from gateway.routing.route import Outcome
from gateway.types import BlockKey, CacheScope, Usage, WorkerId


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def traffic() -> tuple[Traffic, Clock]:
    clock = Clock()
    return Traffic(clock, busy=lambda: 0.0, salt=1, registry=Registry(LoadBoard(), clock)), clock


def keys(tokens: Sequence[int]) -> list[BlockKey]:
    return block_keys(root_key(CacheScope("m")), pack_tokens(tokens))


def record(tokens: Sequence[int], *, reusable: int = 0, cached: int = 0, **changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "request_id": "r", "endpoint": "/v1/chat/completions", "model": "m", "asked_model": "m",
        "worker": WorkerId("w"), "status": 200, "outcome": Outcome.OK, "streamed": True,
        "prompt_tokens": len(tokens), "matched_tokens": reusable, "reusable_tokens": reusable,
        "usage": Usage(len(tokens), 4, cached), "routing_s": 0.0, "ttft_s": 0.5, "gap_mean_s": 0.01,
        "gap_longest_s": 0.01, "pieces": 4, "total_s": 1.0, "tries": (), "stripped": (), "error": "",
        "keys": (keys(tokens),),
    }  # fmt: skip
    return RequestRecord(**{**fields, **changes})


class Encoder:
    """Tokens as they are given; what a real encoder has beside is still there."""

    name = "local"
    exact = True
    files = "its files"

    async def encode(self, request: PromptRequest) -> Sequence[TokenPrompt]:
        return [TokenPrompt(array("I", p), len(p)) for p in request.prompts or () if not isinstance(p, str)]

    async def close(self) -> None: ...


def test_records_become_reuse_and_turns() -> None:
    one, _ = traffic()
    chat = list(range(320))
    one.record(record(chat[:160]))
    one.record(record(chat, reusable=160, cached=160))
    view = one.view()["m"]
    assert view.block_size == 16
    # 10 blocks, then the same ten and ten new ones
    assert (view.reuse.blocks, view.reuse.distinct_blocks) == (30, 20)
    assert view.reuse.ceiling == pytest.approx(10 / 30)
    assert view.reuse.curve[-1] == (32, pytest.approx(10 / 30))
    assert [(row.first_turn, row.prompt_tokens, row.uncached_tokens) for row in view.turns] == [
        (1, 160, 160),
        (2, 320, 160),
    ]
    assert view.capacity_blocks == 0


def test_what_was_refused_or_unread_counts_nowhere() -> None:
    one, _ = traffic()
    one.record(record(range(160), worker=None))
    one.record(record(range(160), keys=()))
    one.record(record(range(160), outcome=Outcome.CLIENT_ERROR, status=400, usage=None, pieces=0))
    assert one.view() == {}


def test_a_period_ends_and_its_curve_speaks_until_the_next_is_old_enough() -> None:
    one, clock = traffic()
    for _ in range(2):
        one.record(record(range(160)))
    clock.now += PERIOD_S
    one.record(record(range(1000, 1160)))
    assert one.view()["m"].reuse.ceiling == 0.5
    assert one.view()["m"].reuse.window_s >= PERIOD_S
    clock.now += PERIOD_S / 2
    assert one.view()["m"].reuse.ceiling == 0.0


def test_encoders_are_overheard_and_unchanged() -> None:
    one, clock = traffic()
    inner = Encoder()
    seconds = Histogram("tokenize_seconds", "Time.", ("model", "source"), (1.0,))
    without = Counter("untokenized_requests", "Without.", ("model", "reason"))
    get = timed({"m": inner}.get, seconds, without, lambda: 0.0, one.overhear)
    ear: Any = get("m")
    assert get("m") is ear
    assert get("unknown") is None
    assert (ear.name, ear.exact, ear.files) == ("local", True, "its files")
    system = list(range(5000, 5400))

    async def talk() -> None:
        for n in range(10):
            prompts = [[90_000 + n, *system, *range(n * 50, n * 50 + 30)]]
            request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=prompts)
            clock.now += 1
            (answer,) = await ear.encode(request)
            assert list(answer.tokens) == prompts[0]
            if n < 9:
                one.record(record(range(160)))  # its fingerprint is made when an answer has ended
        # a moment later: not looked at
        await ear.encode(request)

    anyio.run(talk)
    found = one.view()["m"].divergence
    assert found.prompts == 10
    assert found.kinds[0].diverges_at_block == 0


def test_the_admin_port_shows_it_without_a_token_of_any_prompt() -> None:
    one, _ = traffic()
    tokens = list(range(70_000, 70_160))
    one.record(record(tokens))
    one.heard("m", [TokenPrompt(array("I", tokens), len(tokens))], from_bytes=False)
    answer = anyio.run(_ask, one, "GET", "/admin/traffic", None)
    assert answer.status_code == 200
    assert traffic_facts(answer.json())["m"].reuse.blocks == 10
    assert "7000" not in answer.text


def test_capacity_is_that_of_all_workers_in_blocks_of_the_pool() -> None:
    clock = Clock()
    registry = Registry(LoadBoard(), clock)
    registry.add(WorkerSpec("http://a", model="m", block_size=32, capacity_blocks=100))
    one = Traffic(clock, busy=lambda: 0.0, salt=1, registry=registry)
    one.record(record(range(160)))
    # its engine has not been asked yet: nobody knows what it has
    assert one.view()["m"].capacity_blocks == 0


def test_a_plan_is_the_command_s() -> None:
    one, _ = traffic()
    body = {"model": "qwen2-7b", "gpu": "a100-80"}
    answer = anyio.run(_ask, one, "POST", "/admin/plan", body)
    assert answer.status_code == 200, answer.text
    # 2 × 28 layers × 4 heads × 128 × 2 bytes
    assert answer.json()["kv_bytes_per_token"] == 57_344


def test_names_for_a_plan_are_those_that_it_takes() -> None:
    one, _ = traffic()
    names = anyio.run(_ask, one, "GET", "/admin/plan", None).json()
    assert names["kv"] == ["auto", "fp16", "bf16", "fp8", "int8", "int4"]
    assert "qwen2-7b" in names["models"]
    assert "chat" in names["scenarios"]
    for gpu in names["gpus"]:
        body = {"model": "qwen2-0.5b", "gpu": gpu, "weights": names["weights"][0]}
        assert anyio.run(_ask, one, "POST", "/admin/plan", body).status_code == 200, gpu


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"model": "no-such-model", "gpu": "a100-80"}, "no-such-model"),
        ({"model": "/etc/passwd", "gpu": "a100-80"}, "passwd"),
        ({"model": 5}, "Expected `str`"),
        ({"wrong_field": 1}, "wrong_field"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(body: dict[str, Any], said: str) -> None:
    answer = anyio.run(_ask, traffic()[0], "POST", "/admin/plan", body)
    assert answer.status_code == 400
    assert said in answer.json()["message"]


async def _ask(one: Traffic, method: str, path: str, body: object) -> httpx.Response:
    app = FastAPI()
    app.include_router(advice_routes(one))

    @app.exception_handler(InvalidRequest)
    async def _refused(_: Any, error: InvalidRequest) -> JSONResponse:
        return JSONResponse({"message": error.message}, status_code=error.status)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
        return await client.request(method, path, json=body)


def test_a_fingerprint_is_made_in_steps_while_answers_end() -> None:
    """Nobody waits for the whole of it: half a millisecond of the processor's time each time."""
    clock, spent = Clock(), 0.0

    def busy() -> float:
        nonlocal spent
        spent += 0.0002  # so long takes each step
        return spent

    one = Traffic(clock, busy=busy, salt=1, registry=Registry(LoadBoard(), clock))
    tokens = array("I", range(2048))
    one.heard("m", [TokenPrompt(tokens, 2048)], from_bytes=False)
    one.heard(
        "m", [TokenPrompt(array("I", range(9000, 9500)), 500)], from_bytes=False
    )  # it has its hands full
    before = spent
    one.record(record(range(160)))
    assert spent - before <= 0.001
    (heads,) = (one.heads()["m"],)
    assert heads == (head_of(tokens, 1),)
