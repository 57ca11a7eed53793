"""Promised against delivered."""

from typing import Any

import pytest

from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.route import Outcome
from gateway.types import CacheScope, Usage, WorkerId
from tests.gateway.routing.conftest import keys

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1200))


async def answer(fleet: Any, cached: int | None, prompt_tokens: int = 200) -> int:
    """Routes the prompt, ends it with this usage; returns what was promised."""
    route = await fleet.route(PROMPT)
    fleet.router.finish(route, Outcome.OK, Usage(prompt_tokens, 3, cached), 0.1)
    route.lease.release()
    return int(route.matched_tokens)


async def test_less_than_promised_loses_what_lies_behind(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    assert await answer(fleet, 80) == 192
    assert fleet.router.weigh(await fleet.router.read(request())).reusable == 80
    drift = fleet.router.feedback.drift(a)
    assert (drift.promises, drift.promised_tokens, drift.short_tokens, drift.extra_tokens) == (1, 192, 112, 0)
    assert drift.drift == pytest.approx(0.1 * 112 / 192)
    assert ("delivered", a, 192, 80) in fleet.watching.seen
    assert ("parity", "m", 200, 200) in fleet.watching.seen


def request() -> PromptRequest:
    return PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT])


async def test_a_verdict_on_what_an_engine_held_before_it_began_anew_is_none(fleet: Any) -> None:
    """It comes when the engine holds the prompt again, by its own word."""
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    before = await fleet.route(PROMPT)
    assert before.matched_tokens == 192
    fleet.index.clear(a)
    fleet.store(a, PROMPT)
    fleet.router.finish(before, Outcome.OK, Usage(200, 3, 0), 0.1)
    assert fleet.router.weigh(await fleet.router.read(request())).reusable == 192
    assert await answer(fleet, 80) == 192  # of one that came since it counts
    assert fleet.router.weigh(await fleet.router.read(request())).reusable == 80


async def test_a_request_that_failed_before_takes_back_no_promise_made_since(fleet: Any) -> None:
    a = fleet.add("a")
    before = await fleet.route(PROMPT)
    fleet.index.clear(a)
    await fleet.route(PROMPT)
    assert fleet.router.weigh(await fleet.router.read(request())).reusable == 192
    fleet.router.finish(before, Outcome.BUSY, None, None)
    assert fleet.router.weigh(await fleet.router.read(request())).reusable == 192


async def test_who_skips_the_cache_is_promised_nothing_and_refutes_nothing(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    route = await fleet.router.route(
        PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT], skips_cache=True)
    )
    assert (route.matched_tokens, route.reusable_tokens) == (0, 0)
    fleet.router.finish(route, Outcome.OK, Usage(200, 3, 0), 0.1)
    route.lease.release()
    assert await answer(fleet, 192) == 192


async def test_a_cache_that_is_set_apart_in_secret_matches_nothing(fleet: Any) -> None:
    """SGLang's `extra_key`: the events of such blocks do not tell of it."""
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    apart = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT], extra_key="k")
    assert fleet.router.weigh(await fleet.router.read(apart)).reusable == 0


async def test_an_adapter_that_stands_beside_the_model_has_blocks_of_its_own(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    french = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT], lora_path="french")
    assert fleet.router.weigh(await fleet.router.read(french)).reusable == 0
    fleet.store(a, PROMPT[:96], CacheScope("m", "french"))
    assert fleet.router.weigh(await fleet.router.read(french)).reusable == 96


async def test_a_kept_promise_changes_nothing(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    assert await answer(fleet, 192) == 192
    assert await answer(fleet, 192) == 192
    assert fleet.router.feedback.drift(a).drift == 0.0


async def test_more_than_promised_is_counted(fleet: Any) -> None:
    a = fleet.add("a")
    assert await answer(fleet, 48) == 0
    drift = fleet.router.feedback.drift(a)
    assert (drift.promises, drift.extra_tokens) == (0, 48)


async def test_a_silent_engine_gets_no_verdict(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    for _ in range(10):
        assert await answer(fleet, None) == 192
    drift = fleet.router.feedback.drift(a)
    assert (drift.promises, drift.degraded) == (0, False)


async def test_several_prompts_get_no_verdict_but_parity(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    two = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT, [1] * 50])
    route = await fleet.router.route(two)
    fleet.router.finish(route, Outcome.OK, Usage(250, 3, 0), 0.1)
    assert fleet.router.feedback.drift(a).promises == 0
    assert fleet.watching.seen[-1] == ("parity", "m", 250, 250)


async def test_empty_promises_mark_the_index_degraded_until_one_is_kept(fleet: Any) -> None:
    a = fleet.add("a")
    degraded = []
    for i in range(6):
        fleet.store(a, PROMPT)
        assert await answer(fleet, 0) == 192
        degraded.append((i + 1, fleet.router.feedback.drift(a).degraded))
    assert degraded == [(1, False), (2, False), (3, False), (4, False), (5, True), (6, True)]
    fleet.store(a, PROMPT)  # it keeps ingesting
    assert await answer(fleet, 192) == 192
    assert not fleet.router.feedback.drift(a).degraded
    told = [entry for entry in fleet.watching.seen if entry[0] == "degraded"]
    assert told == [("degraded", a, True), ("degraded", a, False)]


async def test_what_an_engine_said_that_it_gave_up_before_its_turn_came_breaks_no_word(fleet: Any) -> None:
    """A short cache: the prompt waited, its blocks went for others', and it was computed and stored anew."""
    a = fleet.add("a")
    blocks = keys(PROMPT)
    fleet.store(a, PROMPT)
    for _ in range(6):
        route = await fleet.route(PROMPT)
        assert route.matched_tokens == 192
        fleet.index.remove(a, blocks)
        fleet.store(a, PROMPT)
        fleet.router.finish(route, Outcome.OK, Usage(200, 3, 0), 0.1)
        route.lease.release()
    drift = fleet.router.feedback.drift(a)
    assert (drift.promises, drift.short_tokens, drift.degraded) == (6, 6 * 192, False)
    assert fleet.index.held_depth(a, blocks) == 12, "what it holds since is no lie"


async def test_what_it_gave_up_for_others_excuses_no_lie(fleet: Any) -> None:
    a = fleet.add("a")
    others = list(range(5000, 5200))
    for _ in range(5):
        fleet.store(a, PROMPT)
        fleet.store(a, others)
        route = await fleet.route(PROMPT)
        fleet.index.remove(a, keys(others))
        fleet.router.finish(route, Outcome.OK, Usage(200, 3, 0), 0.1)
        route.lease.release()
    assert fleet.router.feedback.drift(a).degraded


async def test_empty_placements_degrade_nobody(fleet: Any) -> None:
    """Decisions alone promised it: no word of the engine was broken."""
    a = fleet.add("a")
    for start in range(6):
        prompt = list(range(1000 * start, 1000 * start + 200))
        await fleet.route(prompt)
        sibling = await fleet.route(prompt)
        assert sibling.matched_tokens == 192
        fleet.router.finish(sibling, Outcome.OK, Usage(200, 3, 0), 0.1)
    drift = fleet.router.feedback.drift(a)
    assert (drift.promises, drift.degraded) == (6, False)


async def test_estimated_tokens_are_judged_by_share(make_fleet: Any, token_ids: Any) -> None:
    fleet = make_fleet(encoder=token_ids(exact=False))
    a = fleet.add("a")
    assert await answer(fleet, 0) == 0
    # the engine counts 150 tokens where we count 200; it served 144 of them: 192 of ours
    assert await answer(fleet, 144, prompt_tokens=150) == 192
    assert fleet.router.feedback.drift(a).short_tokens == 0
    assert await answer(fleet, 72, prompt_tokens=150) == 192
    assert fleet.router.feedback.drift(a).short_tokens == 96
    assert not any(entry[0] == "parity" for entry in fleet.watching.seen)
    assert await answer(fleet, 72, prompt_tokens=150) == 96


async def test_a_workers_record_goes_with_it(fleet: Any) -> None:
    a = fleet.add("a")
    await answer(fleet, 48)
    fleet.registry.remove(a)
    assert fleet.router.feedback.drift(a).extra_tokens == 0
    assert fleet.router.feedback.drift(WorkerId("nobody")).promises == 0


async def test_a_promise_that_rested_on_a_placement_refutes_nothing_that_events_confirm(fleet: Any) -> None:
    a = fleet.add("a")
    first = await fleet.route(PROMPT)
    sibling = await fleet.route(PROMPT)
    assert (first.matched_tokens, sibling.matched_tokens) == (0, 192)
    fleet.store(a, PROMPT)  # the first one's events arrive
    # both were prefilled side by side, so that the sibling found nothing in the cache
    fleet.router.finish(sibling, Outcome.OK, Usage(200, 3, 0), 0.1)
    sibling.lease.release()
    assert fleet.index.held_depth(a, sibling.keys[0]) == 12
    assert fleet.router.feedback.drift(a).short_tokens == 192


async def test_behind_an_image_nothing_is_promised_and_nothing_refuted(
    make_fleet: Any, token_ids: Any
) -> None:
    """The engine counts 200 tokens of text and 1,800 of image: the leading 96 that it took from its cache are
    all that was promised, not a twentieth of it."""
    fleet = make_fleet(encoder=token_ids(media_at=100))
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    for _ in range(2):
        assert await answer(fleet, 96, prompt_tokens=2000) == 96
    assert ("delivered", a, 96, 96) in fleet.watching.seen
    assert fleet.router.feedback.drift(a).drift == 0.0
    assert not [seen for seen in fleet.watching.seen if seen[0] == "parity"]
