"""What a decision promises is taken back where no prefill came of it."""

import asyncio
from typing import Any

import pytest

from gateway.fleet.worker import EngineInfo
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.route import Outcome
from gateway.types import Usage

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1454))  # 454 tokens: 28 blocks and 6 tokens
REQUEST = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT])


async def end(fleet: Any, outcome: Outcome, *, answered: bool = False) -> int:
    """One request that ends so; returns what it was promised."""
    route = await fleet.route(PROMPT)
    if answered:
        route.lease.first_byte()
    usage = Usage(454, 2, 0) if outcome is Outcome.OK else None
    fleet.router.finish(route, outcome, usage, None)
    route.lease.release()
    return int(route.matched_tokens)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize(
    ("outcome", "answered", "promised_next"),
    [
        (Outcome.CLIENT_ERROR, False, 0),
        (Outcome.CLIENT_ERROR, True, 0),  # the body of a refusal is an answer too
        (Outcome.BUSY, False, 0),
        (Outcome.UPSTREAM_ERROR, False, 0),
        (Outcome.TIMEOUT, False, 0),
        (Outcome.CANCELLED, False, 0),
        (Outcome.INTERNAL, False, 0),
        (Outcome.CANCELLED, True, 448),
        (Outcome.UPSTREAM_ERROR, True, 448),
        (Outcome.OK, True, 448),
    ],
)
async def test_only_a_prefill_leaves_a_promise(
    fleet: Any, events: bool, outcome: Outcome, answered: bool, promised_next: int
) -> None:
    fleet.add("a", **({} if events else {"events": None}))
    assert await end(fleet, outcome, answered=answered) == 0
    # looked at, since a busy worker gets no second request at once
    assert fleet.router.weigh(await fleet.router.read(REQUEST)).matches.get("http://a:1", 0) == promised_next
    fleet.index.check_integrity()


async def test_the_index_is_told_after_the_request_was_sent_and_before_anybody_asks_it(fleet: Any) -> None:
    fleet.add("a")
    route = await fleet.route(PROMPT)
    keys = route.keys[0]
    assert fleet.index.match(keys, fleet.now) == {}, "its bytes are on their way first"
    await asyncio.sleep(0)
    assert fleet.index.match(keys, fleet.now) == {"http://a:1": 28}
    other = list(range(5000, 5160))
    await fleet.route(other)
    assert (await fleet.route(other)).matched_tokens == 144, "in the same round of the event loop"


async def test_a_rejected_sibling_does_not_take_a_running_ones_promise_along(fleet: Any) -> None:
    fleet.add("a")
    running = await fleet.route(PROMPT)
    assert await end(fleet, Outcome.CLIENT_ERROR) == 448
    assert await end(fleet, Outcome.OK) == 448
    running.lease.release()


@pytest.mark.parametrize(
    ("info", "promised"),
    [
        (EngineInfo("m", capacity_blocks=28), 0),  # 448 tokens: it has no room for 454
        (EngineInfo("m", capacity_blocks=1000, max_model_len=453), 0),
        (EngineInfo("m", capacity_blocks=29, max_model_len=454), 448),
        (EngineInfo("m"), 448),  # it does not say
    ],
)
async def test_a_prompt_that_does_not_fit_promises_nothing(
    fleet: Any, info: EngineInfo, promised: int
) -> None:
    fleet.add("a", info)
    await fleet.route(PROMPT)
    assert (await fleet.route(PROMPT)).matched_tokens == promised


async def test_no_match_is_longer_than_what_a_worker_can_hold(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", capacity_blocks=20, block_size=16, max_model_len=300))
    fleet.store(a, PROMPT)
    # 300 tokens are 18 whole blocks
    assert (await fleet.route(PROMPT)).matched_tokens == 288


@pytest.mark.parametrize(
    ("capacity", "sizes", "placed"),
    [
        (1000, [8000, 8000, 160], [500, 500]),  # the third would push out the first
        (1000, [17_000, 8000, 8000], [500, 500]),  # the first is longer than all it has
        (1000, [16_000], [1000]),
        (100_000, [131_072, 131_072, 16], [8192, 8192]),
        (100_000, [400_000, 16], [25_000]),
        (0, [400_000, 16], [25_000]),
    ],
)
async def test_several_prompts_are_promised_as_far_as_they_fit_together(
    fleet: Any, capacity: int, sizes: list[int], placed: list[int]
) -> None:
    fleet.add("a", EngineInfo("m", capacity_blocks=capacity))
    prompts = [[i] * size for i, size in enumerate(sizes)]
    route = await fleet.router.route(PromptRequest(Endpoint.COMPLETIONS, "m", prompts=prompts))
    assert [len(keys) for keys in route.notes.placed] == placed
    fleet.router.finish(route, Outcome.CLIENT_ERROR, None, None)
    route.lease.release()
    fleet.index.check_integrity()
