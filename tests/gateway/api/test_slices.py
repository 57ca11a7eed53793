"""Very long prompts on their way to a worker, on real sockets: what is asked ahead of them, and all that can
go wrong with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.rates import MIN_SAMPLES
from gateway.prompt.base import Endpoint
from gateway.prompt.reader import read_prompt
from gateway.types import WorkerId
from tests.faults import FaultyEngine, Script, Seen, Turn, answers, control, hangs, raw
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
    prompts = [seen.json()["prompt"] for seen in engine.seen if seen.body]
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


async def hangs_when_asked(turn: Turn) -> None:
    """Well until it is asked for a prompt; from then on it takes what comes and says nothing."""
    assert turn.engine is not None
    if turn.seen.method == "GET" and not lengths(turn.engine):
        await control(turn.seen, "m")(turn)
    else:
        await hangs()(turn)


async def test_a_worker_that_hangs_at_a_slice_is_not_asked_for_the_rest() -> None:
    async with (
        FaultyEngine(hangs_when_asked) as hung,
        FaultyEngine(keeps_all, model="m") as fine,
        sliced(hung, fine, health_interval=0.05, health_timeout=0.2) as gateway,
        http() as client,
    ):
        keys = (await gateway.app.router.read(read_prompt(Endpoint.COMPLETIONS, BODY))).keys[0]
        gateway.app.index.store(WorkerId(hung.url), keys[:64])
        answer = await client.post(gateway.url + PATH, json=BODY, timeout=60)
        assert answer.status_code == 200
        assert lengths(hung) == [2048]
        assert lengths(fine) == [1024, 2048, 3072, 4096, 5000]
        await gateway.records(1)
        assert gateway.retries() == {"timeout": 1}


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


async def test_where_a_client_leaves_the_first_that_waited_for_its_prompt_goes_in_slices() -> None:
    """And the next one waits for that. Neither has been anywhere before, as far as anybody is told."""

    async def hangs_at_its_second(turn: Turn) -> None:
        await (keeps_all if len(lengths(turn.engine)) != 2 else hangs())(turn)  # type: ignore[arg-type]

    async with (
        FaultyEngine(hangs_at_its_second, model="m") as engine,
        sliced(engine) as gateway,
        http() as client,
    ):

        async def ask(*more: int) -> int:
            answer = await client.post(gateway.url + PATH, json={"model": "m", "prompt": [*PROMPT, *more]})
            return answer.status_code

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not condition():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)

        def waiting() -> int:
            (worker,) = gateway.app.view.workers()
            return worker.load.requests

        first = asyncio.create_task(ask())
        await until(lambda: len(engine.seen) == 2)
        second = asyncio.create_task(ask(*range(40)))
        await until(lambda: waiting() == 2)
        third = asyncio.create_task(ask(*range(60)))
        await until(lambda: waiting() == 3)
        assert lengths(engine) == [1024, 2048]
        first.cancel()
        assert await asyncio.wait_for(asyncio.gather(second, third), 20) == [200, 200]
        assert lengths(engine) == [1024, 2048, 1024, 2048, 3072, 4096, 5040, 5060]
        await gateway.records(3)
        assert (gateway.outcomes(), gateway.retries()) == ({"cancelled": 1, "ok": 2}, {})
