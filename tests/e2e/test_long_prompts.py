"""Short prompts behind a very long one, on a real engine: with slices they pass it, without they wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import httpx
import pytest

from gateway.fleet.rates import MIN_SAMPLES
from tests.e2e.conftest import Fleet, start_fleet

pytestmark = pytest.mark.anyio

MODEL = "sim:0.3ms-per-token"
LONG, SHORT, SLICE = 8000, 100, 1024


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Answer:
    first_at: float
    cached: int
    matched: int
    length: int


def tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(1000) for _ in range(count)]


async def ask(client: httpx.AsyncClient, fleet: Fleet, prompt: list[int]) -> Answer:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "stream": True}
    body["stream_options"] = {"include_usage": True}
    first, usage = 0.0, {}
    async with client.stream("POST", fleet.url + "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"] and not first:
                first = time.monotonic()
            usage = event.get("usage") or usage
    matched = int(response.headers["x-gateway-matched-tokens"])
    return Answer(first, usage["prompt_tokens_details"]["cached_tokens"], matched, len(prompt))


def fleet_with(folder: str, tmp: pytest.TempPathFactory, after: float) -> Iterator[Fleet]:
    flags = ["--slice-after", str(after), "--slice-tokens", str(SLICE)]
    with start_fleet(tmp.mktemp(folder), model=MODEL, workers=1, args=flags) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def slicing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    yield from fleet_with("slicing", tmp_path_factory, 1.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    yield from fleet_with("whole", tmp_path_factory, 0.0)


async def a_long_one_and_two_behind(fleet: Fleet, seed: int) -> tuple[Answer, list[Answer], list[int]]:
    """Its speed is known by then. The two come one after the other while the long one is computed."""
    random = Random(seed)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for _ in range(MIN_SAMPLES):
            await ask(client, fleet, tokens(random, 700))
        prompt = tokens(random, LONG)
        long = asyncio.create_task(ask(client, fleet, prompt))
        async with asyncio.timeout(20):
            while not fleet.metric("gateway_inflight_requests"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        behind = [await ask(client, fleet, tokens(random, SHORT)) for _ in range(2)]
        return await long, behind, prompt


async def test_with_slices_they_pass(slicing: Fleet) -> None:
    long, behind, prompt = await a_long_one_and_two_behind(slicing, seed=1)
    assert all(short.first_at < long.first_at for short in behind)
    # the engine calls cached what the slices computed; what we count is what was there before
    assert (long.matched, long.cached) == (0, 7168)
    assert slicing.metric("gateway_sliced_requests_total") == 1
    assert slicing.metric("gateway_slices_total") == 7
    assert slicing.metric("gateway_cached_tokens_total") == 0
    assert slicing.metric("gateway_promise_drift_tokens_total") == 0
    # nothing was computed twice: eight times its own seven hundred, the long one, and two short ones
    computed = MIN_SAMPLES * 700 + LONG + 2 * SHORT
    assert slicing.metric("gateway_prompt_tokens_total") == computed
    slicing.settle()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        again = await ask(client, slicing, prompt)
    assert (again.matched, again.cached) == (7984, 7984)
    assert slicing.metric("gateway_slices_total") == 7


async def test_a_burst_of_siblings_waits_for_the_first_and_computes_nothing_twice(slicing: Fleet) -> None:
    random = Random(3)
    before = {name: slicing.metric(f"gateway_{name}_total") for name in ("slices", "promise_drift_tokens")}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        document = tokens(random, LONG - 512)
        asked = [ask(client, slicing, document + tokens(random, 512)) for _ in range(5)]
        first, *others = await asyncio.gather(*asked)
    # 7,488 tokens are 468 blocks
    assert sorted(one.matched for one in [first, *others]) == [0, 7488, 7488, 7488, 7488]
    assert [one.cached for one in [first, *others] if one.matched] == [7488] * 4
    assert slicing.metric("gateway_slices_total") - before["slices"] == 7
    assert slicing.metric("gateway_promise_drift_tokens_total") == before["promise_drift_tokens"]


async def test_without_they_wait(whole: Fleet) -> None:
    long, behind, _prompt = await a_long_one_and_two_behind(whole, seed=2)
    assert behind[0].first_at >= long.first_at
    assert whole.metric("gateway_sliced_requests_total") == 0
