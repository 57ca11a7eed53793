"""From a request to a worker and back, over a real index."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, ModelNotFound, Overloaded, Unavailable
from gateway.fleet.breaker import BreakerLimits
from gateway.fleet.guards import Guards
from gateway.fleet.load import LoadVector
from gateway.fleet.worker import EngineInfo
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.routing.registry import make_policy
from gateway.routing.route import Outcome, Route
from gateway.types import CacheScope, Usage, WorkerId

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1200))  # 200 tokens: 12 blocks and 8 tokens


async def test_the_holder_gets_the_request(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(b, PROMPT[:96])
    route = await fleet.route(PROMPT)
    assert (route.worker, route.url, route.model) == (b, "http://b:1", "m")
    assert (route.prompt_tokens, route.matched_tokens, route.reusable_tokens) == (200, 96, 96)
    assert (len(route.keys), len(route.keys[0]), route.reason) == (1, 12, "match")
    load = fleet.board.get(b)
    assert (load.requests, load.waiting_tokens) == (1, 104)
    route.lease.first_byte()
    assert (load.waiting_tokens, load.decoding_tokens) == (0, 200)
    route.lease.release()
    assert (load.requests, load.waiting_tokens, load.decoding_tokens) == (0, 0, 0)
    assert fleet.board.get(a).requests == 0
    assert fleet.watching.seen == [("decided", "m", "estimated_ttft", "match")]


async def test_the_last_token_is_always_computed(fleet: Any) -> None:
    a = fleet.add("a")
    fleet.store(a, PROMPT[:96])
    assert (await fleet.route(PROMPT[:96])).matched_tokens == 80
    assert (await fleet.route(PROMPT[:97])).matched_tokens == 96
    assert (await fleet.route(PROMPT[:16])).matched_tokens == 0


async def test_a_busy_holder_loses(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 5000, 0)})
    route = await fleet.route(PROMPT)
    assert (route.worker, route.matched_tokens, route.reusable_tokens) == (b, 0, 192)
    assert route.reason == "load"


async def test_a_burst_of_strangers_spreads_evenly(fleet: Any) -> None:
    for name in "abcd":
        fleet.add(name)
    routes = await asyncio.gather(*(fleet.route([i] * 400) for i in range(64)))
    assert sorted(Counter(r.worker for r in routes).values()) == [16, 16, 16, 16]


async def test_a_burst_of_prompts_without_tokens_spreads_evenly(make_fleet: Any) -> None:
    fleet = make_fleet(encoder=None)
    for name in "abcd":
        fleet.add(name)
    routes = await asyncio.gather(*(fleet.route(PROMPT) for _ in range(64)))
    assert sorted(Counter(r.worker for r in routes).values()) == [16, 16, 16, 16]
    assert {(r.reason, r.prompt_tokens) for r in routes} == {("unread", 0)}


async def test_a_burst_of_equal_short_requests_spreads_evenly(fleet: Any) -> None:
    for name in "abcd":
        fleet.add(name)
    routes = await asyncio.gather(*(fleet.route([7] * 10) for _ in range(64)))  # no full block: no match
    assert sorted(Counter(r.worker for r in routes).values()) == [16, 16, 16, 16]


async def test_siblings_of_one_long_prompt_meet(fleet: Any) -> None:
    for name in "abcd":
        fleet.add(name)
    shared = list(range(8000))
    routes = await asyncio.gather(*(fleet.route(shared + [i] * 100) for i in range(64)))
    assert len({r.worker for r in routes}) <= 2
    assert sum(r.matched_tokens == 8000 for r in routes) >= 62


async def test_a_promise_made_by_placement_runs_out(fleet: Any) -> None:
    fleet.add("a")
    assert (await fleet.route(PROMPT)).matched_tokens == 0
    assert (await fleet.route(PROMPT)).matched_tokens == 192
    fleet.now += 60.0
    assert (await fleet.route(PROMPT)).matched_tokens == 0


async def test_several_prompts_are_summed(fleet: Any) -> None:
    a, _ = fleet.add("a"), fleet.add("b")
    other = list(range(5000, 5064))
    fleet.store(a, PROMPT[:96])
    fleet.store(a, other)
    request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT, other])
    route = await fleet.router.route(request)
    assert (route.worker, route.prompt_tokens) == (a, 264)
    assert route.matched_tokens == 96 + 48  # of 64 tokens at most (64 − 1) // 16 blocks
    assert [len(k) for k in route.keys] == [12, 3]


async def test_salt_adapter_and_model_share_nothing(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", adapters=("french",)))
    fleet.store(a, PROMPT)
    fleet.store(a, PROMPT[:48], CacheScope("m", salt="s"))
    fleet.store(a, PROMPT[:32], CacheScope("m", adapter="french"))

    async def matched(model: str, salt: str) -> int:
        request = PromptRequest(Endpoint.COMPLETIONS, model, prompts=[PROMPT], cache_salt=salt)
        read = await fleet.router.read(request)
        return int(fleet.router.weigh(read).reusable)

    assert await matched("m", "") == 192
    assert await matched("m", "s") == 48
    assert await matched("m", "t") == 0
    assert await matched("french", "") == 32
    assert await matched("french", "s") == 0


async def test_an_alias_is_sent_by_its_real_name(make_fleet: Any) -> None:
    fleet = make_fleet(aliases={"gpt-4": "m"})
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    route = await fleet.router.route(PromptRequest(Endpoint.COMPLETIONS, "gpt-4", prompts=[PROMPT]))
    assert (route.model, route.matched_tokens) == ("m", 192)


async def test_only_who_has_the_adapter_is_asked(fleet: Any) -> None:
    fleet.add("a")
    b = fleet.add("b", EngineInfo("m", adapters=("french",)))
    for _ in range(4):
        route = await fleet.router.route(PromptRequest(Endpoint.COMPLETIONS, "french"))
        assert (route.worker, route.model, route.reason) == (b, "french", "unread")


async def test_truncation_keeps_the_end_of_the_prompt(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", max_model_len=128))
    fleet.store(a, PROMPT[-100:])
    request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT], truncate_prompt_tokens=100)
    route = await fleet.router.route(request)
    assert (route.prompt_tokens, route.matched_tokens) == (100, 96)
    longest = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT], truncate_prompt_tokens=-1)
    fleet.store(a, PROMPT[-127:])
    route = await fleet.router.route(longest)  # one token is left for the answer
    assert (route.prompt_tokens, route.matched_tokens) == (127, 112)
    fleet.store(a, PROMPT[-128:])
    route = await fleet.router.route(msgspec.structs.replace(longest, max_tokens=0))
    assert (route.prompt_tokens, route.matched_tokens) == (128, 112)


async def test_nothing_is_matched_behind_an_image(make_fleet: Any, token_ids: Any) -> None:
    fleet = make_fleet(encoder=token_ids(media_at=50))
    a = fleet.add("a")
    fleet.store(a, PROMPT)
    route = await fleet.route(PROMPT)
    assert (route.prompt_tokens, route.matched_tokens, route.notes.exact) == (200, 48, False)


async def test_larger_engine_blocks_are_credited_whole(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", block_size=64))
    fleet.store(a, PROMPT[:176])
    assert (await fleet.route(PROMPT)).matched_tokens == 128  # 11 keys of 16: two blocks of 64


async def test_another_block_size_is_the_pools_unit(fleet: Any) -> None:
    from gateway.kv.keys import block_keys, pack_tokens, root_key

    a = fleet.add("a", EngineInfo("m", block_size=24))
    fleet.index.store(a, block_keys(root_key(CacheScope("m")), pack_tokens(PROMPT), block_size=24))
    route = await fleet.route(PROMPT)
    assert (route.matched_tokens, route.notes.unit, len(route.keys[0])) == (192, 24, 8)


async def test_unknown_models_are_404_and_say_what_exists(fleet: Any) -> None:
    fleet.add("a", EngineInfo("m", adapters=("french",)))
    with pytest.raises(ModelNotFound, match="'x' does not exist; there are: french, m") as error:
        await fleet.router.route(PromptRequest(Endpoint.CHAT, "x"))
    assert (error.value.status, error.value.param) == (404, "model")
    fleet.add("b", EngineInfo("n"))
    with pytest.raises(InvalidRequest, match="names no model"):
        await fleet.router.route(PromptRequest(Endpoint.CHAT, ""))
    assert fleet.watching.seen == [("refused", "x", "ModelNotFound"), ("refused", "", "InvalidRequest")]


async def test_scaled_to_zero_is_503(make_fleet: Any) -> None:
    fleet = make_fleet(declared=("m",))
    with pytest.raises(Unavailable) as error:
        await fleet.route(PROMPT)
    assert error.value.status == 503


async def test_all_down_is_503_with_reasons(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.registry.withhold(a, "its pod is not ready")
    fleet.registry.drain(b)
    with pytest.raises(
        Unavailable, match="draining: drained by the operator; unhealthy: its pod is not ready"
    ) as e:
        await fleet.route(PROMPT)
    assert e.value.status == 503


async def test_all_full_is_429_with_retry_after(fleet: Any) -> None:
    fleet.add("a", max_requests=1)
    first = await fleet.route(PROMPT)
    with pytest.raises(Overloaded, match="every worker of model 'm' is full") as error:
        await fleet.route(PROMPT)
    assert (error.value.status, error.value.retry_after) == (429, 1.0)
    first.lease.release()
    assert (await fleet.route(PROMPT)).worker == first.worker


async def test_a_worker_at_its_bound_is_no_candidate(fleet: Any) -> None:
    a, b = fleet.add("a", max_requests=2), fleet.add("b")
    fleet.store(a, PROMPT)
    assert [(await fleet.route(PROMPT)).worker for _ in range(4)] == [a, a, b, b]


async def test_no_worker_twice_for_one_request(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    assert (await fleet.route(PROMPT, exclude=frozenset({a}))).worker == b
    with pytest.raises(Overloaded, match="no other worker"):
        await fleet.route(PROMPT, exclude=frozenset({a, b}))


async def fail(fleet: Any, route: Route, outcome: Outcome = Outcome.UPSTREAM_ERROR) -> None:
    fleet.router.finish(route, outcome, None, None)
    route.lease.release()


async def test_the_breaker_closes_a_failing_worker_out_and_lets_one_probe_in(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    only_a = frozenset({b})
    for _ in range(3):
        await fail(fleet, await fleet.route(PROMPT, exclude=only_a))
    assert {(await fleet.route([i] * 50)).worker for i in range(8)} == {b}
    fleet.now += 5.0
    probe = await fleet.route(PROMPT, exclude=only_a)
    assert (probe.worker, probe.notes.probe) == (a, True)
    with pytest.raises(Overloaded):
        await fleet.route(PROMPT, exclude=only_a)  # one probe at a time
    fleet.router.finish(probe, Outcome.OK, None, 0.1)
    assert not (await fleet.route(PROMPT, exclude=only_a)).notes.probe


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ERROR, Outcome.CANCELLED])
async def test_what_is_not_the_workers_fault_opens_nothing(fleet: Any, outcome: Outcome) -> None:
    a = fleet.add("a")
    for _ in range(20):
        await fail(fleet, await fleet.route(PROMPT), outcome)
    assert (await fleet.route(PROMPT)).worker == a


async def test_busy_is_backpressure_and_clears_by_itself(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    await fail(fleet, await fleet.route(PROMPT), Outcome.BUSY)
    assert (await fleet.route(PROMPT)).worker == b
    fleet.now += 0.25
    with pytest.raises(Overloaded) as error:
        await fleet.route(PROMPT, exclude=frozenset({b}))
    assert error.value.retry_after == 0.75
    fleet.now += 0.75
    assert (await fleet.route(PROMPT)).worker == a


async def test_a_request_with_no_match_goes_to_the_emptiest_cache(fleet: Any) -> None:
    a, b, c = fleet.add("a"), fleet.add("b"), fleet.add("c")
    fleet.store(a, list(range(16 * 500)))
    fleet.store(b, list(range(16 * 200)))
    fleet.store(c, list(range(16 * 800)))
    fleet.now += 2.0
    assert (await fleet.route([1] * 100)).worker == b
    load = fleet.board.get(c)
    assert (load.cached_blocks, load.occupancy) == (800, 0.8)


async def test_weights_and_learned_rates(fleet: Any) -> None:
    a, b, c = fleet.add("a", weight=3.0), fleet.add("b"), fleet.add("c")
    for worker, ttft in ((a, 1.0), (b, 1.0), (c, 2.0)):
        others = frozenset({a, b, c}) - {worker}
        for i in range(8):
            route = await fleet.route([i] * 1000, exclude=others)
            fleet.router.finish(route, Outcome.OK, Usage(1000, 5, 0), ttft)
            route.lease.release()
    fleet.now += 2.0
    await fleet.route([9] * 1000)
    # an operator's weight stands; b is the median; c takes twice as long
    rates = {w: fleet.board.get(w).prefill_rate for w in (a, b, c)}
    assert rates == {a: 3.0, b: 1.0, c: pytest.approx(0.5)}


async def test_a_worker_that_returns_starts_slowly(make_fleet: Any) -> None:
    fleet = make_fleet(guards=Guards(breaker=BreakerLimits(failures=1, open_s=5.0)))
    a, b = fleet.add("a"), fleet.add("b")
    await fail(fleet, await fleet.route(PROMPT, exclude=frozenset({b})))
    fleet.now += 5.0
    probe = await fleet.route(PROMPT, exclude=frozenset({b}))
    fleet.router.finish(probe, Outcome.OK, None, 0.1)
    probe.lease.release()
    fleet.now += 1.0
    routes = [await fleet.route([i] * 400) for i in range(12)]
    # 1 s into the 30 s of slow start its part of six is 0.2 + 0.8/30
    assert Counter(r.worker for r in routes) == {a: 1, b: 11}


async def test_a_removed_worker_is_gone_at_once_even_for_a_request_under_way(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    reading = await fleet.router.read(PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT]))
    fleet.registry.remove(a)
    weighing = fleet.router.weigh(reading)
    assert [w.id for w in weighing.candidates] == [b]
    assert fleet.board.get(a) is None
    assert weighing.reusable == 0


async def test_engines_without_events_are_indexed_by_decisions(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", capacity_blocks=8), events=None)
    await fleet.route(PROMPT[:100])
    fleet.now += 60.0  # far beyond a placement's life
    assert (await fleet.route(PROMPT[:100])).matched_tokens == 96
    await fleet.route([5] * 100)  # 6 more blocks than the engine's 8 can hold
    fleet.now += 60.0
    assert sum(1 for _ in fleet.index.held(a)) <= 8


async def test_policies_are_switched_at_run_time_per_model(fleet: Any) -> None:
    a, b = fleet.add("a"), fleet.add("b")
    fleet.store(a, PROMPT)
    assert {(await fleet.route(PROMPT)).worker for _ in range(4)} == {a}
    fleet.router.policies.set(make_policy("round_robin", random=Random(1)), "m")
    assert fleet.router.policies.names() == {"*": "estimated_ttft", "m": "round_robin"}
    assert [(await fleet.route(PROMPT)).worker for _ in range(4)] == [a, b, a, b]
    fleet.router.policies.reset("m")
    assert {(await fleet.route(PROMPT)).worker for _ in range(4)} == {a}


async def test_a_data_parallel_rank_is_named(fleet: Any) -> None:
    fleet.add("a", dp_rank=0)
    route = await fleet.route(PROMPT)
    assert (route.worker, route.url, route.dp_rank) == (WorkerId("http://a:1#dp0"), "http://a:1", 0)


async def test_a_busy_worker_is_left_alone_for_as_long_as_it_asks(fleet: Any) -> None:
    a = fleet.add("a")
    route = await fleet.route(PROMPT)
    fleet.router.finish(route, Outcome.BUSY, None, None, retry_after=7.0)
    route.lease.release()
    with pytest.raises(Overloaded) as error:
        await fleet.route(PROMPT)
    assert error.value.retry_after == 7.0
    fleet.now += 7.0
    again = await fleet.route(PROMPT)
    assert again.worker == a
    # one at a time is what it took: learned from its refusal
    with pytest.raises(Overloaded, match="full"):
        await fleet.route(PROMPT)
    fleet.router.finish(again, Outcome.OK, None, None)
    again.lease.release()
    assert (await fleet.route(PROMPT)).worker == a
