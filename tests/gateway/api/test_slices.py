"""Very long prompts on their way to a worker, on real sockets: what is asked ahead of them, and all that can
go wrong with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.api.slices import SlicedPrompt, Slices
from gateway.errors import UpstreamConnectError
from gateway.fleet.load import Lease, LoadBoard
from gateway.fleet.rates import MIN_SAMPLES
from gateway.prompt.base import Endpoint
from gateway.prompt.reader import read_prompt
from gateway.routing.route import Notes, Route
from gateway.routing.slicing import Plan, Sliced
from gateway.types import BlockKey, Usage, WorkerId
from tests.faults import FaultyEngine, Script, Seen, Turn, answers, hangs, raw
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole
from tests.ports import free_port

pytestmark = pytest.mark.anyio

TOKENIZER = Path(__file__).resolve().parents[2] / "data" / "tokenizers" / "vllm-tiny"
PROMPT = [number % 500 for number in range(5000)]
PATH = "/v1/completions"
BODY = {"model": "m", "prompt": PROMPT}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def completion(cached: int) -> Script:
    """An answer that says of its prompt, token ids, what `cached` of it was there."""

    async def script(turn: Turn) -> None:
        await answers(answer_to(turn.seen, cached))(turn)

    return script


def answer_to(seen: Seen, cached: int) -> bytes:
    prompt = seen.json()["prompt"]
    assert isinstance(prompt, list)
    usage = {
        "prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip
    return json.dumps({"choices": [{"index": 0, "text": "a"}], "usage": usage}).encode()


async def keeps_all(turn: Turn) -> None:
    """An engine that has cached all that it was ever asked for, but the last token's block."""
    assert turn.engine is not None
    lengths = [len(s.json()["prompt"]) for s in turn.engine.seen[:-1] if s.target == PATH]  # type: ignore[arg-type]
    await completion(max(lengths, default=0) // 16 * 16)(turn)


@asynccontextmanager
async def sliced(*engines: FaultyEngine, **settings: Any) -> AsyncIterator[Whole]:
    """In front of engines that took a millisecond a token: 5,000 of them are five slices' worth of time."""
    specs = [
        f"{engine.url},events=tcp://127.0.0.1:{free_port()},block_size=16,capacity=4096" for engine in engines
    ]
    given = {"tokenizers": {"m": str(TOKENIZER)}, "slice_after": 2.0, "slice_tokens": 1024, **settings}
    async with whole(*specs, **given) as gateway:
        for engine in engines:
            for _ in range(MIN_SAMPLES):
                gateway.app.router.rates.observe(WorkerId(engine.url), 1000, 1.0, 500_000.0)
        yield gateway


def lengths(engine: FaultyEngine) -> list[int]:
    prompts = [seen.json()["prompt"] for seen in engine.seen]
    return [len(prompt) for prompt in prompts if isinstance(prompt, list)]


def counted(gateway: Whole, name: str) -> float:
    found = gateway.app.metrics.registry.get_sample_value
    (worker,) = {worker.id for worker in gateway.app.view.workers()}
    return found(name, {"model": "m", "worker": worker}) or 0.0


async def test_its_beginnings_are_asked_for_and_then_itself(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    async with (
        FaultyEngine(keeps_all, model="m") as engine,
        sliced(engine, worker_api_key_file=key) as gateway,
        http() as client,
    ):
        body = {
            "model": "m", "prompt": PROMPT, "max_tokens": 7, "seed": 3, "cache_salt": "mine", "priority": 2,
        }  # fmt: skip
        answer = await client.post(gateway.url + PATH, json=body, headers={"x-request-id": "me"})
        assert answer.status_code == 200
        # the client is told what the engine says
        assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4096}
        assert lengths(engine) == [1024, 2048, 3072, 4096, 5000]
        *beginnings, whole_one = engine.seen
        assert whole_one.json() == body
        for tokens, seen in zip((1024, 2048, 3072, 4096), beginnings, strict=True):
            assert (seen.method, seen.target) == ("POST", PATH)
            assert seen.json() == {
                "model": "m", "prompt": PROMPT[:tokens], "max_tokens": 1, "temperature": 0,
                "cache_salt": "mine", "priority": 2,
            }  # fmt: skip
            assert seen.header("x-request-id") == [f"me-{tokens}"]
            assert seen.header("authorization") == whole_one.header("authorization") == ["Bearer secret"]
            assert seen.header("content-type") == ["application/json"]
        await gateway.records(1)
        # nothing of it was there before its own slices
        assert counted(gateway, "gateway_cached_tokens_total") == 0
        assert counted(gateway, "gateway_reported_prompt_tokens_total") == 5000
        assert (
            counted(gateway, "gateway_sliced_requests_total"),
            counted(gateway, "gateway_slices_total"),
        ) == (
            1,
            4,
        )


@pytest.mark.parametrize(
    "unusual",
    [{"echo": True}, {"prompt_logprobs": 1}, {"prompt": [PROMPT, PROMPT]}, {"prompt": PROMPT[:1999]}],
)
async def test_what_goes_in_one_piece(unusual: dict[str, Any]) -> None:
    async with (
        FaultyEngine(answers(b'{"choices":[]}'), model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        body = {"model": "m", "prompt": PROMPT, "echo": False, "prompt_logprobs": None, **unusual}
        assert (await client.post(gateway.url + PATH, json=body)).status_code == 200
        assert [seen.json() for seen in engine.seen] == [body]
        await gateway.records(1)
        assert counted(gateway, "gateway_sliced_requests_total") == 0


async def test_a_worker_that_refuses_slices_is_left_alone_with_them() -> None:
    async with (
        FaultyEngine(answers(b'{"error":{}}', 404), keeps_all, model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        for _ in range(2):
            answer = await client.post(gateway.url + PATH, json=BODY)
            assert answer.status_code == 200
        assert lengths(engine) == [1024, 5000, 5000]


async def test_a_keys_own_salt_goes_along(tmp_path: Path) -> None:
    """Or what slices leave would be anybody's."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        json.dumps(
            [{"id": "a", "hash": "sha256:" + hashlib.sha256(b"secret").hexdigest(), "cache_salt": "mine"}]
        )
    )
    async with (
        FaultyEngine(keeps_all, model="m") as engine,
        sliced(engine, api_keys_file=keys) as gateway,
        http() as client,
    ):
        asked = [BODY, BODY | {"cache_salt": "theirs"}]
        for body in asked:
            answer = await client.post(
                gateway.url + PATH, json=body, headers={"authorization": "Bearer secret"}
            )
            assert answer.status_code == 200
        salts = [seen.json()["cache_salt"] for seen in engine.seen]
        assert salts == [salts[4]] * 5 + [salts[9]] * 5
        assert (str(salts[4]).startswith("tenant:"), salts[4] != salts[9]) == (True, True)
        assert lengths(engine) == [1024, 2048, 3072, 4096, 5000] * 2


@pytest.mark.parametrize("status", [429, 503])
async def test_one_that_has_too_much_to_do_is_asked_again(status: int) -> None:
    async with (
        FaultyEngine(completion(0), answers(b"{}", status), keeps_all, model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        for prompt in (PROMPT, PROMPT[1:]):
            answer = await client.post(gateway.url + PATH, json={"model": "m", "prompt": prompt})
            assert answer.status_code == 200
        assert lengths(engine) == [1024, 2048, 5000, 1024, 2048, 3072, 4096, 4999]


async def test_room_that_was_taken_ends_it() -> None:
    async with (
        FaultyEngine(completion(0), completion(1024), completion(512), completion(512), model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        answer = await client.post(gateway.url + PATH, json=BODY)
        assert answer.status_code == 200
        assert lengths(engine) == [1024, 2048, 3072, 5000]
        await gateway.records(1)
        assert counted(gateway, "gateway_cached_tokens_total") == 0


CUT = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
RESET = raw(then="reset")
"""On a connection that was used before, by a look at its models too, another one is tried."""


@pytest.mark.parametrize(("fails", "asked"), [([CUT], [2048]), ([RESET, RESET], [2048, 2048])])
async def test_where_a_slice_fails_the_request_itself_tells_whether_the_worker_does(
    fails: list[Script], asked: list[int]
) -> None:
    async with (
        FaultyEngine(completion(0), *fails, keeps_all, model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        answer = await client.post(gateway.url + PATH, json=BODY)
        assert answer.status_code == 200
        assert lengths(engine) == [1024, *asked, 5000]
        await gateway.records(1)
        assert (gateway.outcomes(), gateway.retries()) == ({"ok": 1}, {})
        # it is asked for slices again
        await client.post(gateway.url + PATH, json={"model": "m", "prompt": PROMPT[1:]})
        assert lengths(engine)[-5:] == [1024, 2048, 3072, 4096, 4999]


async def test_another_worker_gets_it_in_slices_of_its_own() -> None:
    async with (
        FaultyEngine(RESET, model="m") as broken,
        FaultyEngine(keeps_all, model="m") as fine,
        sliced(broken, fine) as gateway,
        http() as client,
    ):
        # the broken one holds its first block, so that it goes there
        keys = (await gateway.app.router.read(read_prompt(Endpoint.COMPLETIONS, BODY))).keys[0]
        gateway.app.index.store(WorkerId(broken.url), keys[:64])
        answer = await client.post(gateway.url + PATH, json=BODY)
        assert answer.status_code == 200
        assert lengths(broken) == [2048, 2048, 5000]
        assert lengths(fine) == [1024, 2048, 3072, 4096, 5000]
        await gateway.records(1)
        assert gateway.retries() == {"upstream_error": 1}


async def test_a_client_that_leaves_ends_its_slice() -> None:
    async with (
        FaultyEngine(completion(0), hangs(), model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):
        asking = asyncio.create_task(client.post(gateway.url + PATH, json=BODY))
        async with asyncio.timeout(20):
            while len(engine.seen) < 2:  # noqa: ASYNC110 - the engine tells nobody of its second script
                await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.wait_for(engine.gone.wait(), 20)
        await gateway.records(1)
        assert gateway.outcomes() == {"cancelled": 1}
        assert lengths(engine) == [1024, 2048]


# -- whose turn it is -------------------------------------------------------------------------------------


KEYS = range(7000, 7312)
FOREVER = float("inf")


class Road:
    """One worker's load, prompts of 5,000 tokens that go there, and what was asked for."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.slices = Slices(self.loop.time)
        self.load = LoadBoard().add(WorkerId("w"))
        self.seconds = seconds
        self.asked: list[tuple[str, int]] = []

    def other(self, tokens: int = 100) -> Lease:
        """A request in one piece that has no answer yet."""
        return Lease.take(self.load, prompt_tokens=tokens, matched_tokens=0)

    def enter(self, matched: int = 0) -> SlicedPrompt:
        plan = Plan(5000, matched, self.seconds, 1024, 16)
        lease = Lease.take(
            self.load, prompt_tokens=5000, matched_tokens=matched, yielding_tokens=plan.yields_tokens
        )
        self.entered = self.route(lease, matched)
        return self.slices.enter(Sliced(plan, array("I", PROMPT)), self.entered)

    def route(self, lease: Lease, matched: int = 0, held: int = 0, keys: Sequence[int] = KEYS) -> Route:
        return Route(
            lease.worker, "", "m", lease, 5000, matched, matched, [[BlockKey(key) for key in keys]], "match",
            notes=Notes(held_blocks=held),
        )  # fmt: skip

    def ask(self, name: str, then: Callable[[], Awaitable[None]] | None = None) -> Any:
        async def ask(tokens: int) -> Usage:
            self.asked.append((name, tokens))
            if then is not None:
                await then()
            return Usage(tokens, 1, max(0, tokens - 1024))

        return ask


async def test_who_was_promised_a_part_of_it_follows_and_is_nobody_to_yield_to() -> None:
    road = Road(seconds=4000.0)
    prompt, gates = road.enter(), [asyncio.Event() for _ in CUTS]
    deadline = road.loop.time() + 60

    async def next_gate() -> None:
        await gates[len(road.asked) - 1].wait()

    async def asked(count: int) -> None:
        async with asyncio.timeout(20):
            while len(road.asked) < count:  # noqa: ASYNC110 - it looks around by itself
                await asyncio.sleep(0.005)

    def lease(matched: int) -> Lease:
        return Lease.take(road.load, prompt_tokens=matched + 100, matched_tokens=matched)

    def follow(lease: Lease, matched: int, **other: Any) -> asyncio.Task[bool]:
        return asyncio.create_task(road.slices.follow(road.route(lease, matched, **other), deadline))

    # what it has from others, and another prompt: nothing to wait for
    for other in ({"held": 100}, {"keys": [key + 1 for key in KEYS]}):
        free = lease(1600)
        assert not await follow(free, 1600, **other)
        free.release()
    running = asyncio.create_task(prompt.run(road.ask("a", next_gate), FOREVER))
    of_short = lease(1600)
    short, long = follow(of_short, 1600), follow(lease(4992), 4992)
    await asked(1)
    gates[0].set()
    await asked(2)
    assert not short.done()
    gates[1].set()
    assert await asyncio.wait_for(short, 20)
    # it is somebody to yield to from now on, until it has its answer
    await asyncio.sleep(0.1)
    assert len(road.asked) == 2
    of_short.first_byte()
    await asked(3)
    for gate in gates[:3]:
        gate.set()
    await asked(4)
    assert not long.done()
    gates[3].set()
    # the request itself is sent, and whoever comes behind it finds all of it
    await asyncio.wait_for(running, 20)
    assert await asyncio.wait_for(long, 20)
    assert road.asked == [("a", cut) for cut in CUTS]


async def test_nobody_follows_for_longer_than_it_has() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()
    lease = Lease.take(road.load, prompt_tokens=1700, matched_tokens=1600)
    assert await road.slices.follow(road.route(lease, 1600), road.loop.time() + 0.05)
    prompt.over()


CUTS: Sequence[int] = (1024, 2048, 3072, 4096)


async def test_it_waits_for_others_and_goes_on_when_they_have_their_answers() -> None:
    road = Road(seconds=4000.0)
    other, late = road.other(), list[Lease]()
    prompt = road.enter()

    async def somebody_comes() -> None:
        if len(road.asked) == 2:
            late.append(road.other())

    running = asyncio.create_task(prompt.run(road.ask("a", somebody_comes), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == []
    other.first_byte()
    async with asyncio.timeout(20):
        while len(road.asked) < 2:  # noqa: ASYNC110 - it looks around by itself
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert road.asked == [("a", 1024), ("a", 2048)]
    late[0].release()
    await asyncio.wait_for(running, 20)
    assert road.asked == [("a", cut) for cut in CUTS]
    assert (prompt.sent, prompt.computed) == (4, 4096)
    assert prompt.left_to(Usage(5000, 7, 4096)) == Usage(5000, 7, 0)
    assert prompt.left_to(Usage(5000, 7, None)) == Usage(5000, 7, None)
    prompt.over()


async def test_it_yields_no_more_than_its_share() -> None:
    road = Road(seconds=0.4)
    road.other(5000)
    prompt = road.enter()
    assert (road.load.waiting_tokens, road.load.yielding_tokens) == (6024, 3976)
    began = road.loop.time()
    await prompt.run(road.ask("a"), FOREVER)
    # a quarter of its own time; then the rest goes in one piece, which is all of it here
    assert road.loop.time() - began >= 0.1
    assert road.asked == []
    # all of it is somebody's wait from then on
    assert (road.load.waiting_tokens, road.load.yielding_tokens) == (10_000, 0)
    prompt.over()
    prompt._lease.release()
    assert road.load.waiting_tokens == 5000


async def test_answers_in_one_piece_hold_it_for_as_long_as_their_prompts_take() -> None:
    """They show their first byte when all of them is there."""
    road = Road(seconds=10.0)
    road.other()
    prompt, began = road.enter(), road.loop.time()
    await prompt.run(road.ask("a"), FOREVER)
    assert road.asked == [("a", cut) for cut in CUTS]
    # two milliseconds a token, and as much again to be sure
    assert road.loop.time() - began >= 100 * 0.004
    assert road.load.waiting_tokens == 100 + 1024


async def test_it_is_held_no_longer_than_its_client_waits() -> None:
    road = Road(seconds=4000.0)
    road.other()
    prompt = road.enter()
    await prompt.run(road.ask("a"), road.loop.time() + 0.05)
    second = road.enter()
    await second.run(road.ask("b"), road.loop.time() + 0.05)
    assert road.asked == []
    prompt.over()
    second.over()


async def test_an_engine_that_does_not_say_what_was_cached() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()

    async def silent(tokens: int) -> Usage:
        road.asked.append(("a", tokens))
        return Usage(tokens, 1, None)

    await prompt.run(silent, FOREVER)
    assert (road.asked, prompt.computed) == ([("a", cut) for cut in CUTS], 4096)
    prompt.over()


async def test_long_ones_come_in_order_of_arrival_in_slices_or_not() -> None:
    road = Road(seconds=4000.0)
    first, gate = road.enter(), asyncio.Event()
    running = asyncio.create_task(first.run(road.ask("a", gate.wait), FOREVER))
    # a second with hardly any time to yield, and promised a part of the first; one in one piece behind them
    road.seconds = 0.4
    second = road.enter(matched=1024)
    slicing = asyncio.create_task(second.run(road.ask("b"), FOREVER))
    third = Lease.take(road.load, prompt_tokens=1281, matched_tokens=0)
    following = asyncio.create_task(road.slices.follow(road.route(third), FOREVER))
    short = Lease.take(road.load, prompt_tokens=1280, matched_tokens=0)
    assert not await road.slices.follow(road.route(short), FOREVER)
    short.first_byte()
    await asyncio.sleep(0.2)  # longer than the second would yield: to wait for its turn is not to
    assert road.asked == [("a", 1024)]
    gate.set()
    await asyncio.wait_for(running, 20)
    assert not following.done()
    first._lease.first_byte()
    await asyncio.wait_for(slicing, 20)
    assert await asyncio.wait_for(following, 20)
    assert road.asked == [*(("a", cut) for cut in CUTS), *(("b", cut) for cut in (2048, 3072, 4096))]
    assert not road.slices.queues


async def test_one_after_the_other_from_first_slice_to_first_byte() -> None:
    road = Road(seconds=4000.0)
    first, second = road.enter(), road.enter()
    await first.run(road.ask("a"), FOREVER)
    running = asyncio.create_task(second.run(road.ask("b"), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == [("a", cut) for cut in CUTS]
    # the first one's answer begins
    first_lease = first._lease
    first_lease.first_byte()
    await asyncio.wait_for(running, 20)
    assert road.asked[4:] == [("b", cut) for cut in CUTS]
    first.over()
    second.over()
    second.over()
    second._lease.release()
    first_lease.release()
    assert (road.load.waiting_tokens, road.load.yielding_tokens, road.load.requests) == (0, 0, 0)


async def test_whoever_gives_up_waiting_for_a_turn_has_none_to_give_back() -> None:
    road = Road(seconds=4000.0)
    first, gate = road.enter(), asyncio.Event()
    running = asyncio.create_task(first.run(road.ask("a", gate.wait), FOREVER))
    await asyncio.sleep(0)
    assert road.asked == [("a", 1024)]
    hasty = road.enter()
    await hasty.run(road.ask("b"), road.loop.time() + 0.05)
    # it is one of the others now, until it has its answer
    hasty._lease.first_byte()
    third = road.enter()
    waiting = asyncio.create_task(third.run(road.ask("c"), FOREVER))
    await asyncio.sleep(0.1)
    assert road.asked == [("a", 1024)]
    gate.set()
    await asyncio.wait_for(running, 20)
    first._lease.first_byte()
    await asyncio.wait_for(waiting, 20)
    assert road.asked == [*(("a", cut) for cut in CUTS), *(("c", cut) for cut in CUTS)]
    assert not road.slices.queues


async def test_a_slice_that_cannot_be_sent_is_the_last() -> None:
    road = Road(seconds=4000.0)
    prompt = road.enter()

    async def refuse(tokens: int) -> Usage:
        raise UpstreamConnectError("w refused the connection")

    await prompt.run(refuse, FOREVER)
    assert (prompt.sent, prompt.computed) == (0, 0)
    prompt.over()
