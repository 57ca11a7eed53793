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

from gateway.fleet.engine_metrics import samples
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
        asyncio.run(learn(fleet))
        yield fleet


async def learn(fleet: Fleet) -> None:
    """From then on its speed is known."""
    random = Random(0)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for _ in range(MIN_SAMPLES):
            await ask(client, fleet, tokens(random, 700))


COUNTED = ("sliced_requests", "slices", "cached_tokens", "promise_drift_tokens", "prompt_tokens")


def computed(fleet: Fleet) -> float:
    """Prompt tokens that the engine has computed, by its own word."""
    (worker,) = fleet.workers()
    text = httpx.get(worker["url"] + "/metrics", trust_env=False, timeout=10).raise_for_status().text
    return sum(s.value for s in samples(text, ["vllm:request_prefill_kv_computed_tokens_sum"]))


def counts(fleet: Fleet) -> dict[str, float]:
    return {name: fleet.metric(f"gateway_{name}_total") for name in COUNTED}


def more(fleet: Fleet, before: dict[str, float]) -> dict[str, float]:
    return {name: count - before[name] for name, count in counts(fleet).items()}


@pytest.fixture(scope="module")
def slicing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    yield from fleet_with("slicing", tmp_path_factory, 1.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    yield from fleet_with("whole", tmp_path_factory, 0.0)


async def a_long_one_and_two_behind(fleet: Fleet, seed: int) -> tuple[Answer, list[Answer], list[int]]:
    """The two come one after the other while the long one is computed."""
    random = Random(seed)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        prompt = tokens(random, LONG)
        long = asyncio.create_task(ask(client, fleet, prompt))
        async with asyncio.timeout(20):
            while not fleet.metric("gateway_inflight_requests"):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        behind = [await ask(client, fleet, tokens(random, SHORT)) for _ in range(2)]
        return await long, behind, prompt


async def test_with_slices_they_pass(slicing: Fleet) -> None:
    before, engine = counts(slicing), computed(slicing)
    long, behind, prompt = await a_long_one_and_two_behind(slicing, seed=1)
    assert all(short.first_at < long.first_at for short in behind)
    # the engine calls cached what the slices computed; what we count is what was there before
    assert (long.matched, long.cached) == (0, 7168)
    assert more(slicing, before) == {
        "sliced_requests": 1, "slices": 7, "cached_tokens": 0, "promise_drift_tokens": 0,
        "prompt_tokens": LONG + 2 * SHORT,
    }  # fmt: skip
    assert computed(slicing) - engine == LONG + 2 * SHORT
    slicing.settle()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        again = await ask(client, slicing, prompt)
    assert (again.matched, again.cached) == (7984, 7984)
    assert more(slicing, before)["slices"] == 7


async def test_a_burst_of_siblings_waits_for_the_first_and_computes_nothing_twice(slicing: Fleet) -> None:
    random = Random(3)
    before, engine = counts(slicing), computed(slicing)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        document = tokens(random, LONG - 512)
        asked = [ask(client, slicing, document + tokens(random, 512)) for _ in range(5)]
        first, *others = await asyncio.gather(*asked)
    # 7,488 tokens are 468 blocks
    assert sorted(one.matched for one in [first, *others]) == [0, 7488, 7488, 7488, 7488]
    assert [one.cached for one in [first, *others] if one.matched] == [7488] * 4
    found = more(slicing, before)
    assert (found["slices"], found["promise_drift_tokens"], found["cached_tokens"]) == (7, 0, 4 * 7488)
    assert computed(slicing) - engine == LONG + 4 * 512


async def test_without_they_wait(whole: Fleet) -> None:
    long, behind, _prompt = await a_long_one_and_two_behind(whole, seed=2)
    assert behind[0].first_at >= long.first_at
    assert whole.metric("gateway_sliced_requests_total") == 0
