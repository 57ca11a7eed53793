"""Explain says what routing would do, and does nothing."""

from random import Random
from typing import Any

import msgspec
import pytest

from gateway.cli.explain import show
from gateway.errors import ModelNotFound, UpstreamConnectError
from gateway.fleet.breaker import Verdict
from gateway.fleet.load import LoadVector
from gateway.fleet.rates import MIN_SAMPLES
from gateway.fleet.worker import EngineInfo
from gateway.prompt.base import Endpoint, PromptRequest
from gateway.prompt.engine import EngineEncoder
from gateway.prompt.reader import read_prompt
from gateway.routing.explain import explain
from gateway.routing.registry import POLICIES, make_policy
from gateway.routing.route import Outcome
from gateway.routing.slice_refusals import REST_S
from gateway.routing.slicing import Slicing

pytestmark = pytest.mark.anyio
PROMPT = list(range(1000, 1200))
REQUEST = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT])


async def test_every_figure_of_a_decision(fleet: Any) -> None:
    a, b, c, d = (fleet.add(name) for name in "abcd")
    fleet.store(a, PROMPT)
    fleet.store(b, PROMPT[:96])
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 5000, 40)})
    fleet.registry.set_health(d, False, "/health answers 500")
    told = await explain(fleet.router, REQUEST)
    assert (told.model, told.adapter, told.sent_as) == ("m", "", "m")
    assert (told.policy, told.tokenizer, told.exact) == ("estimated_ttft", "local", True)
    assert (told.prompts, told.prompt_tokens, told.block_size, told.blocks) == (1, 200, 16, 12)
    assert (told.reusable_tokens, told.chosen, told.reason) == (192, b, "load")
    # 192 of 200 are held, two of three have no queue
    assert told.affinity == pytest.approx(6 * 0.96 * 2 / 3)
    assert told.slack == pytest.approx(2 / 3)
    rows = [(w.worker, w.matched_tokens, w.uncached_tokens, w.score, w.chosen) for w in told.workers]
    # 5.84 for each uncached token
    assert rows == [
        (b, 96, 104, pytest.approx(607.36), True),
        (c, 0, 200, pytest.approx(1168.0), False),
        (a, 192, 8, pytest.approx(5111.44), False),
        (d, 0, 200, None, False),
    ]
    assert [w.verdict for w in told.workers] == [
        "chosen: lowest score",
        "score is 560.6 higher",
        "score is 4504.1 higher, though it holds 96 tokens more",
        "not a candidate: unhealthy: /health answers 500",
    ]
    busy = told.workers[2]
    assert (busy.requests, busy.waiting_tokens, busy.decoding_tokens, busy.state) == (1, 5000, 40, "ready")


async def test_a_score_can_be_redone_from_the_figures_shown(fleet: Any) -> None:
    a = fleet.add("a", EngineInfo("m", capacity_blocks=20))
    b = fleet.add("b", EngineInfo("m", capacity_blocks=1000), weight=2.0)
    fleet.store(a, PROMPT[:96])
    fleet.board.set_peer_loads("r2", {a: LoadVector(3, 50, 40, 250), b: LoadVector(2, 500, 0, 250)})
    told = await explain(fleet.router, REQUEST)
    shown = {w.worker: w for w in told.workers}
    # a: 250 tokens of context and 200 of this prompt in a cache of 320: more than one of the three has
    assert (shown[a].uncached_tokens, shown[a].overflow_tokens, shown[a].prefill_rate) == (104, 130, 1.0)
    assert shown[a].score == 50 + 2 * 104 + 130 + 40 / 20 + 16 * 3
    assert (shown[b].uncached_tokens, shown[b].overflow_tokens, shown[b].prefill_rate) == (200, 0, 2.0)
    assert shown[b].score == (500 + 2 * 200 + 16 * 2) / 2.0


async def test_a_long_wait_before_its_past_is_shown(fleet: Any) -> None:
    a, b = (fleet.add(name, EngineInfo("m", capacity_blocks=20_000)) for name in "ab")
    fleet.store(a, PROMPT)
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 89_000, 0, 160_000)})
    told = await explain(fleet.router, REQUEST)
    shown = {w.worker: w for w in told.workers}
    # half of the workers have no queue, three quarters of the caches are free: 4 · ½ · ¾ · ¾ of 5,000
    assert [shown[w].long_wait for w in (a, b)] == [5625.0, 0.0]
    # 8 uncached tokens count as a block, with affinity 6 · 0.96 · ⅜
    assert shown[a].score == pytest.approx(89_000 + 5625 + (2 + 2.16) * 16 + 16)


LONG = [number % 50_000 for number in range(100_000)]
MANY = EngineInfo("m", capacity_blocks=25_000)


async def test_in_how_many_pieces_a_long_prompt_goes(make_fleet: Any, capsys: Any) -> None:
    fleet = make_fleet(slicing=Slicing(5.0, 16_000))
    a, b = (fleet.add(name, MANY) for name in "ab")
    fleet.store(a, LONG[:20_000])

    async def pieces(tokens: list[int], **said: Any) -> int:
        body = {"model": "m", "prompt": tokens, **said}
        told = await explain(fleet.router, read_prompt(Endpoint.COMPLETIONS, body))
        assert told.chosen == a or told.reusable_tokens == 0
        return told.slices

    # nobody knows yet how long it takes
    assert await pieces(LONG) == 1
    for _ in range(MIN_SAMPLES):
        fleet.router.rates.observe(a, 10_000, 1.0)
    # 80,000 tokens are 8 s: to 36,000, 52,000, 68,000 and 84,000, and the last 16,000 with the request itself
    assert await pieces(LONG) == 5
    assert "goes to its worker in 5 pieces, the last of them the request itself" in printed(
        await explain(fleet.router, PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[LONG])), capsys
    )
    # all of it is computed for who wants to hear of it
    assert [await pieces(LONG, **said) for said in ({"echo": True}, {"prompt_logprobs": 0})] == [1, 1]
    assert [await pieces(LONG, **said) for said in ({"echo": False}, {"prompt_logprobs": None})] == [5, 5]
    # 50,000 tokens are the 5 s that one piece may take; of one more the last 18,001 are not worth a cut
    assert await pieces(LONG[:70_000]) == 1
    assert await pieces(LONG[:70_001]) == 3
    # everybody waits, the other one most
    fleet.board.set_peer_loads("r2", {a: LoadVector(1, 500), b: LoadVector(1, 500_000)})
    assert await pieces(LONG) == 1
    for worker in (a, b):
        fleet.registry.drain(worker)
    told = await explain(fleet.router, REQUEST)
    assert (told.chosen, told.slices) == (None, 0)
    assert "pieces" not in printed(told, capsys)


async def test_a_worker_that_refused_slices_and_a_probe_get_it_in_one_piece(make_fleet: Any) -> None:
    """As the request itself would go: what is said is decided in the same place."""
    fleet = make_fleet(slicing=Slicing(5.0, 16_000))
    a = fleet.add("a", MANY)
    for _ in range(MIN_SAMPLES):
        fleet.router.rates.observe(a, 10_000, 1.0)

    async def pieces() -> tuple[int, int]:
        """As explained, and as decided."""
        told = await explain(fleet.router, PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[LONG]))
        route = await fleet.route(LONG)
        fleet.router.finish(route, Outcome.CLIENT_ERROR, None, None)
        route.lease.release()
        sliced = route.notes.sliced
        return told.slices, 1 if sliced is None else len(sliced.plan.cuts) + 1

    assert await pieces() == (6, 6)
    fleet.slice_refusals.refused(a)
    assert await pieces() == (1, 1)
    fleet.now += REST_S - 1
    assert await pieces() == (1, 1)
    fleet.now += 1
    assert await pieces() == (6, 6)
    # one that comes back under its name may be another
    fleet.slice_refusals.refused(a)
    fleet.registry.remove(a)
    fleet.add("a", MANY)
    for _ in range(MIN_SAMPLES):
        fleet.router.rates.observe(a, 10_000, 1.0)
    assert await pieces() == (6, 6)
    # its breaker's rest is over: whoever comes is its probe
    for _ in range(3):
        fleet.guards.record(a, Verdict.FAILURE, fleet.now)
    fleet.now += 6
    assert await pieces() == (1, 1)


async def test_what_yields_waits_before_strangers_alone(fleet: Any, capsys: Any) -> None:
    a, b = (fleet.add(name, MANY) for name in "ab")
    fleet.store(a, PROMPT)
    fleet.board.set_peer_loads("r2", {w: LoadVector(1, 16_000, 0, 100_000, 84_000) for w in (a, b)})
    told = await explain(fleet.router, REQUEST)
    shown = {w.worker: w for w in told.workers}
    assert [(shown[w].waiting_tokens, shown[w].yielding_tokens) for w in (a, b)] == [(16_000, 84_000)] * 2
    # 8 uncached tokens count as a block; nobody is without a queue, so affinity is 0
    assert shown[a].score == 16_000 + 2 * 16 + 16
    assert "16000+84000" in printed(told, capsys)
    stranger = await explain(fleet.router, PromptRequest(Endpoint.COMPLETIONS, "m", prompts=[PROMPT[100:]]))
    assert [w.score for w in stranger.workers] == [16_000 + 84_000 + 2 * 100 + 16] * 2


def printed(told: Any, capsys: Any) -> str:
    show(msgspec.json.decode(msgspec.json.encode(told)))
    return str(capsys.readouterr().out)


async def test_it_agrees_with_routing_and_leaves_no_trace(fleet: Any) -> None:
    for name in "abc":
        fleet.add(name)
    before = fleet.index.stats()
    told = await explain(fleet.router, REQUEST)
    assert fleet.index.stats() == before
    assert [load.requests for load in fleet.board] == [0, 0, 0]
    assert told.workers[0].verdict == "chosen: lowest score, with 2 others"
    assert told.workers[1].verdict.startswith("same score: lost the tie")
    fleet.store(told.workers[2].worker, PROMPT)
    told = await explain(fleet.router, REQUEST)
    assert (await fleet.router.route(REQUEST)).worker == told.chosen


async def test_a_full_fleet_is_explained(fleet: Any) -> None:
    fleet.add("a", max_requests=1)
    await fleet.route(PROMPT)
    told = await explain(fleet.router, REQUEST)
    assert (told.chosen, told.reason) == (None, "")
    assert told.workers[0].verdict == "not a candidate: full: 1 of 1 requests in flight"


@pytest.mark.parametrize("name", list(POLICIES))
async def test_it_is_json_under_every_policy(make_fleet: Any, name: str) -> None:
    fleet = make_fleet(policy=make_policy(name, random=Random(1)))
    for worker in "abc":
        fleet.add(worker)
    told = msgspec.json.decode(msgspec.json.encode(await explain(fleet.router, REQUEST)))
    assert told["policy"] == name
    assert len(told["workers"]) == 3
    assert told["workers"][0]["chosen"]


async def test_what_does_not_exist_is_said(fleet: Any) -> None:
    fleet.add("a")
    with pytest.raises(ModelNotFound):
        await explain(fleet.router, PromptRequest(Endpoint.CHAT, "x"))


async def test_a_prompt_without_tokens_says_why(make_fleet: Any) -> None:
    async def absent(*_: Any, **__: Any) -> Any:
        raise UpstreamConnectError("nobody listens")

    fleet = make_fleet(encoder=EngineEncoder(absent, lambda: ["http://e"], clock=lambda: 0.0))
    a = fleet.add("a")
    request = PromptRequest(Endpoint.COMPLETIONS, "m", prompts=["some text"])
    first, second = await explain(fleet.router, request), await explain(fleet.router, request)
    assert (first.prompt_tokens, first.chosen) == (0, a)
    assert first.not_tokenised == "the engine's /tokenize failed: nobody listens"
    assert second.not_tokenised == "the engine's /tokenize failed a moment ago: nobody listens"
    assert (await explain(fleet.router, REQUEST)).not_tokenised == ""


async def test_a_model_without_a_tokenizer_says_so(make_fleet: Any) -> None:
    fleet = make_fleet(encoder=None)
    fleet.add("a")
    told = await explain(fleet.router, REQUEST)
    assert (told.tokenizer, told.not_tokenised) == ("none", "the model's tokenizer is not found yet")
