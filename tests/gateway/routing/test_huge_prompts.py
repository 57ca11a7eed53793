"""A prompt of a million tokens and more: the same keys as ever, in slices between which others are served,
and no more of them than an engine can use."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest

from gateway.fleet.worker import EngineInfo
from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.kv.known_runs import KnownRuns
from gateway.prompt.base import Endpoint, PromptRequest, TokenPrompt, too_long
from gateway.prompt.engine import EngineEncoder
from gateway.prompt.reader import read_prompt
from gateway.routing.explain import explain
from gateway.routing.keys import MOST_BLOCKS, prompt_keys, prompts_keys
from gateway.types import CacheScope

pytestmark = pytest.mark.anyio
ROOT = root_key(CacheScope("m"))


class Turns:
    """Counts how often the event loop came round."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> int:
        self._next.cancel()
        return self.count


def numbered(count: int) -> TokenPrompt:
    return TokenPrompt(array("I", range(count)), count)


@pytest.mark.parametrize("tokens", [16 * 8192, 16 * 8192 + 1, 16 * 3 * 8192 + 15, 16 * 30_000])
async def test_slices_give_the_same_keys(tokens: int) -> None:
    prompt = numbered(tokens)
    (sliced,) = await prompts_keys([prompt], ROOT, KnownRuns(), unit=16)
    assert sliced == prompt_keys(prompt, ROOT, KnownRuns(), unit=16)
    assert len(sliced.full) == tokens // 16
    assert len(sliced.cacheable) == (tokens - 1) // 16
    assert sliced.full == block_keys(ROOT, pack_tokens(range(tokens)))


async def test_slices_of_a_truncated_and_partly_exact_prompt() -> None:
    prompt = TokenPrompt(numbered(400_000).tokens, 300_000)
    (sliced,) = await prompts_keys([prompt], ROOT, KnownRuns(), unit=32, keep_last=390_000)
    assert sliced.full == block_keys(ROOT, pack_tokens(range(10_000, 300_000)), block_size=32)
    assert sliced.tokens == 390_000


async def test_others_have_their_turn_while_it_is_hashed() -> None:
    turns = Turns()
    await prompts_keys([numbered(16 * 8192 * 4)], ROOT, KnownRuns(), unit=16)
    assert turns.stop() >= 4


async def test_others_have_their_turn_between_many_prompts() -> None:
    """512 prompts of 64 blocks: 32,768 blocks, four times 8,192."""
    prompts = [TokenPrompt(array("I", [i] * 1024), 1024) for i in range(512)]
    turns = Turns()
    keyed = await prompts_keys(prompts, ROOT, KnownRuns(), unit=16)
    assert turns.stop() >= 3
    assert keyed == [prompt_keys(prompt, ROOT, KnownRuns(), unit=16) for prompt in prompts]


async def test_the_engines_tokenizer_has_steps_for_many_prompts_too() -> None:
    async def nobody(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("token ids need no tokenizer")

    encoder = EngineEncoder(nobody, lambda: [], clock=lambda: 0.0)
    prompts = [[i] * 1000 for i in range(1024)]
    turns = Turns()
    encoded = await encoder.encode(PromptRequest(Endpoint.COMPLETIONS, "m", prompts=prompts))
    # a million tokens, 65,536 and a prompt at most at a time
    assert turns.stop() >= 15
    assert [list(prompt.tokens) for prompt in encoded] == prompts


@pytest.mark.parametrize("unit", [[1, 2, 3], "h"])
async def test_very_many_prompts_go_by_load_unread(fleet: Any, unit: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    request = read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": [unit] * 60_000})
    told = await explain(fleet.router, request)
    assert told.not_tokenised.startswith("the request has more than 1024 prompts")
    turns = Turns()
    routes = [await fleet.router.route(request) for _ in range(2)]
    # no step was taken for any of them
    assert turns.stop() == 0
    assert {route.worker for route in routes} == {a, b}
    assert [(route.reason, route.prompt_tokens, route.keys) for route in routes] == [("unread", 0, [])] * 2


async def test_a_million_tokens_and_no_more_have_keys() -> None:
    assert MOST_BLOCKS * 16 == 1_048_576
    keyed = await prompts_keys(
        [numbered(800_000), numbered(800_000), numbered(100)], ROOT, KnownRuns(), unit=16
    )
    assert [len(prompt.full) for prompt in keyed] == [50_000, MOST_BLOCKS - 50_000, 0]
    assert [prompt.tokens for prompt in keyed] == [800_000, 800_000, 100]


async def test_what_no_engine_takes_has_no_keys(fleet: Any) -> None:
    fleet.add("a", EngineInfo("m", capacity_blocks=1000, max_model_len=4000))
    fleet.add("b", EngineInfo("m", capacity_blocks=500, max_model_len=10_000))
    assert fleet.registry.resolve("m").most_tokens == 8000
    request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[list(range(20_000)), [1] * 640])
    reading = await fleet.router.read(request)
    assert [len(prompt.full) for prompt in reading.prompts] == [500, 40]
    assert reading.prompt_tokens == 20_640


async def test_where_one_does_not_say_nothing_is_cut(fleet: Any) -> None:
    fleet.add("a", EngineInfo("m", capacity_blocks=1000, max_model_len=4000))
    fleet.add("b", EngineInfo("m"))
    assert fleet.registry.resolve("m").most_tokens is None


async def test_one_that_is_not_tokenised_counts_as_load_and_matches_nothing(
    make_fleet: Any, token_ids: Any
) -> None:
    class TooLong(token_ids):  # type: ignore[misc]
        async def encode(self, request: PromptRequest) -> list[TokenPrompt]:
            return [too_long(28_000_000)]

    fleet = make_fleet(encoder=TooLong())
    a, b = fleet.add("a"), fleet.add("b")
    route = await fleet.route([1])
    assert (route.prompt_tokens, route.matched_tokens, route.keys) == (7_000_000, 0, [[]])
    assert fleet.board.get(route.worker).waiting_tokens == 7_000_000
    assert {route.worker, (await fleet.route([1])).worker} == {a, b}
