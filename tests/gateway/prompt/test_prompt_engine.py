"""The engine's tokenizer over real HTTP: a small ASGI application under uvicorn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from gateway.errors import UpstreamTimeout
from gateway.prompt.base import Endpoint, PromptRequest, not_tokenised
from gateway.prompt.engine import EngineEncoder
from gateway.prompt.reader import read_prompt
from gateway.upstream.client import UpstreamClient
from gateway.upstream.visitor import Visitor


class FakeEngine:
    """Counts a text's characters as its tokens; answers as it is told."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.here = self.most = 0
        """Calls under way now, and at most so far."""
        self.status = 200
        self.raw: bytes | None = None
        self.arrived: asyncio.Queue[None] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        parsed = json.loads(body)
        self.bodies.append(parsed)
        self.arrived.put_nowait(None)
        self.here += 1
        self.most = max(self.most, self.here)
        await self.gate.wait()
        self.here -= 1
        text = parsed.get("prompt") or "".join(m["content"] for m in parsed["messages"])
        answer = self.raw or json.dumps({"count": len(text), "tokens": [ord(c) for c in text]}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def served(app: FakeEngine, port: int) -> AsyncIterator[str]:
    config = uvicorn.Config(app, port=port, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        app.gate.set()
        server.should_exit = True
        await task


@asynccontextmanager
async def visitor() -> AsyncIterator[Visitor]:
    client = UpstreamClient()
    try:
        yield Visitor(client)
    finally:
        await client.close()


@asynccontextmanager
async def encoder(port: int, **options: Any) -> AsyncIterator[tuple[EngineEncoder, FakeEngine, Clock]]:
    app, clock = FakeEngine(), Clock()
    async with served(app, port) as url, visitor() as ask:
        yield EngineEncoder(ask, lambda: [url], clock=clock, **{"deadline": 30.0, **options}), app, clock


@asynccontextmanager
async def two_engines(
    ports: Callable[[], int], **options: Any
) -> AsyncIterator[tuple[EngineEncoder, list[FakeEngine], Clock]]:
    """The first of them is asked first."""
    apps, clock = [FakeEngine(), FakeEngine()], Clock()
    async with served(apps[0], ports()) as first, served(apps[1], ports()) as second, visitor() as ask:
        # turns begin at the second of a list
        urls = [second, first]
        yield EngineEncoder(ask, lambda: urls, clock=clock, **{"deadline": 30.0, **options}), apps, clock


def completion(prompt: Any, **fields: Any) -> PromptRequest:
    return read_prompt(Endpoint.COMPLETIONS, {"model": "m", "prompt": prompt, **fields})


def why(prompts: Any) -> tuple[str, str]:
    none = not_tokenised(prompts)
    assert none is not None
    return none.kind, none.why


def ids(prompts: Any) -> list[list[int]]:
    return [list(prompt.tokens) for prompt in prompts]


@pytest.mark.anyio
async def test_prompts_and_cache(free_port: Callable[[], int]) -> None:
    async with encoder(free_port()) as (engine, app, _):
        assert ids(await engine.encode(completion(["ab", [7, 8], "c"]))) == [[97, 98], [7, 8], [99]]
        assert app.bodies == [
            {"model": "m", "prompt": "ab", "add_special_tokens": True},
            {"model": "m", "prompt": "c", "add_special_tokens": True},
        ]
        assert ids(await engine.encode(completion("ab"))) == [[97, 98]]
        assert len(app.bodies) == 2
        await engine.encode(completion("ab", add_special_tokens=False))
        assert len(app.bodies) == 3


@pytest.mark.anyio
async def test_chat_sends_what_decides_the_prompt(free_port: Callable[[], int]) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "documents": [{"title": "t", "text": "x"}],
        "reasoning_effort": "none",
        "add_generation_prompt": False,
        "temperature": 1,
    }
    async with encoder(free_port()) as (engine, app, _):
        assert ids(await engine.encode(read_prompt(Endpoint.CHAT, body))) == [[104, 105]]
        assert app.bodies == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "add_special_tokens": False,
                "chat_template_kwargs": {
                    "documents": [{"title": "t", "text": "x"}],
                    "reasoning_effort": "none",
                    "enable_thinking": False,
                },
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "add_generation_prompt": False,
            }
        ]


@pytest.mark.anyio
async def test_a_failing_service_is_left_alone_for_a_while(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), rest=1.0, max_rest=3.0) as (engine, app, clock):
        await engine.encode(completion("known"))
        app.status = 503
        # 1 s after the first failure, then 2, then 3 at most
        for failures, rest in ((1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0)):
            assert list(await engine.encode(completion("x"))) == []
            assert len(app.bodies) == 1 + failures
            clock.now += rest - 0.01
            assert engine.resting
            assert list(await engine.encode(completion("x"))) == []
            assert len(app.bodies) == 1 + failures
            # what is known is still answered
            assert len(await engine.encode(completion("known"))) == 1
            clock.now += 0.01
            assert not engine.resting
        app.status = 200
        assert ids(await engine.encode(completion("x"))) == [[120]]
        app.status = 503
        await engine.encode(completion("y"))
        clock.now += 1.0
        assert not engine.resting


@pytest.mark.anyio
@pytest.mark.parametrize("raw", [b"no json", b"{}", b'{"tokens": "x"}', b'{"tokens": [-1]}'])
async def test_an_answer_that_makes_no_sense_is_a_failure(free_port: Callable[[], int], raw: bytes) -> None:
    async with encoder(free_port()) as (engine, app, _):
        app.raw = raw
        assert list(await engine.encode(completion("x"))) == []
        assert engine.resting


@pytest.mark.anyio
async def test_a_refused_prompt_is_no_failure(free_port: Callable[[], int]) -> None:
    async with encoder(free_port()) as (engine, app, _):
        app.status = 400
        assert list(await engine.encode(completion("x"))) == []
        assert not engine.resting
        app.status = 404
        assert list(await engine.encode(completion("x"))) == []
        assert engine.resting


@pytest.mark.anyio
async def test_a_slow_answer_is_not_waited_for(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), deadline=0.05) as (engine, app, _):
        app.gate.clear()
        assert list(await engine.encode(completion("x"))) == []
        assert engine.resting


@pytest.mark.anyio
async def test_the_same_prompt_at_once_is_one_call(free_port: Callable[[], int]) -> None:
    async with encoder(free_port()) as (engine, app, _):
        answers = await asyncio.gather(*(engine.encode(completion("ab")) for _ in range(64)))
        assert [ids(prompts) for prompts in answers] == [[[97, 98]]] * 64
        assert len(app.bodies) == 1


@pytest.mark.anyio
async def test_who_leaves_does_not_take_the_answer_from_the_others(free_port: Callable[[], int]) -> None:
    async with encoder(free_port()) as (engine, app, _):
        app.gate.clear()
        first, *others = [asyncio.create_task(engine.encode(completion("ab"))) for _ in range(3)]
        await app.arrived.get()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        app.gate.set()
        assert [ids(prompts) for prompts in await asyncio.gather(*others)] == [[[97, 98]]] * 2
        assert len(app.bodies) == 1


@pytest.mark.anyio
async def test_who_comes_as_the_last_one_leaves_asks_anew(free_port: Callable[[], int]) -> None:
    async with encoder(free_port()) as (engine, app, _):
        app.gate.clear()
        first = asyncio.create_task(engine.encode(completion("ab")))
        await app.arrived.get()
        first.cancel()
        second = asyncio.create_task(engine.encode(completion("ab")))
        with pytest.raises(asyncio.CancelledError):
            await first
        app.gate.set()
        assert ids(await second) == [[97, 98]]


@pytest.mark.anyio
async def test_more_prompts_than_calls_wait_for_their_turn(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), concurrency=8) as (engine, app, _):
        app.gate.clear()
        calls = [asyncio.create_task(engine.encode(completion(chr(97 + n)))) for n in range(32)]
        for _ in range(8):
            await app.arrived.get()
        app.gate.set()
        answers = await asyncio.gather(*calls)
        assert [ids(prompts) for prompts in answers] == [[[97 + n]] for n in range(32)]
        assert app.most == 8


@pytest.mark.anyio
async def test_as_many_wait_as_there_is_room_for(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), concurrency=1, most_waiting=1) as (engine, app, _):
        app.gate.clear()
        first = [asyncio.create_task(engine.encode(completion(text))) for text in ("a", "b", "b")]
        await app.arrived.get()
        assert why(await engine.encode(completion("c"))) == (
            "busy",
            "2 prompts are before it at the engine's tokenizer",
        )
        assert not engine.resting
        app.gate.set()
        assert [ids(prompts) for prompts in await asyncio.gather(*first)] == [[[97]], [[98]], [[98]]]
        assert ids(await engine.encode(completion("c"))) == [[99]]


@pytest.mark.anyio
async def test_a_turn_is_waited_for_as_long_as_an_answer() -> None:
    asked = asyncio.Event()

    async def stuck(*_: Any, **__: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    engine = EngineEncoder(stuck, lambda: ["http://e"], clock=Clock(), deadline=0.05, concurrency=1)
    first = asyncio.create_task(engine.encode(completion("a")))
    await asked.wait()
    assert why(await engine.encode(completion("b"))) == (
        "busy",
        "the engine's tokenizer had no turn in 0.05 s",
    )
    assert not engine.resting
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


@pytest.mark.anyio
async def test_calls_that_fail_together_are_one_failure(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), concurrency=4, rest=1.0) as (engine, app, clock):
        app.status = 503
        app.gate.clear()
        calls = [asyncio.create_task(engine.encode(completion(chr(97 + n)))) for n in range(6)]
        for _ in range(4):
            await app.arrived.get()
        app.gate.set()
        answers = await asyncio.gather(*calls)
        # two were still waiting for their turn: they do not ask any more
        assert [why(prompts)[0] for prompts in answers] == ["failed"] * 4 + ["resting"] * 2
        assert len(app.bodies) == 4
        assert why(await engine.encode(completion("z"))) == (
            "resting",
            "the engine's /tokenize failed a moment ago: /tokenize answers 503",
        )
        clock.now += 1.0
        assert not engine.resting


@pytest.mark.anyio
async def test_a_cancelled_call_frees_its_place(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), concurrency=1) as (engine, app, _):
        app.gate.clear()
        call = asyncio.create_task(engine.encode(completion("a")))
        await app.arrived.get()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        app.gate.set()
        assert ids(await engine.encode(completion("b"))) == [[98]]


@pytest.mark.anyio
async def test_the_cache_is_bounded(free_port: Callable[[], int]) -> None:
    async with encoder(free_port(), cache_bytes=600) as (engine, app, _):
        for text in ("a", "b", "a", "c", "a", "b"):
            await engine.encode(completion(text))
        # two answers of 260 bytes fit: b left when c came
        assert [body["prompt"] for body in app.bodies] == ["a", "b", "c", "b"]


@pytest.mark.anyio
async def test_what_the_engine_cannot_be_asked() -> None:
    clock = Clock()
    async with visitor() as ask:
        engine = EngineEncoder(ask, lambda: [], clock=clock)
        image = {"type": "image_url", "image_url": {"url": "u"}}
        for request in (
            completion("x"),
            completion("\ud800"),
            completion([-1]),
            completion("x", truncate_prompt_tokens=1),
            PromptRequest(Endpoint.CHAT, "m"),
            read_prompt(Endpoint.CHAT, {"messages": [{"role": "user", "content": [image]}]}),
        ):
            assert list(await engine.encode(request)) == []
        assert not engine.resting
        await engine.close()


@pytest.mark.anyio
async def test_nobody_listens(free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with visitor() as ask:
        engine = EngineEncoder(ask, lambda: [url], clock=Clock())
        assert list(await engine.encode(completion("x"))) == []
        assert engine.resting


@pytest.mark.anyio
async def test_nobody_is_asked_about_a_prompt_that_could_not_be_answered_in_time(
    free_port: Callable[[], int],
) -> None:
    async with encoder(free_port(), most_bytes=10_000) as (engine, app, _):
        (prompt,) = await engine.encode(completion("x" * 400_000))
        # a quarter of the body's bytes, its JSON included
        assert 100_000 <= len(prompt.tokens) < 100_100
        assert prompt.exact_tokens == 0
        assert (app.bodies, engine.resting) == ([], False)


@pytest.mark.anyio
async def test_beside_one_that_hangs_every_prompt_is_read(free_port: Callable[[], int]) -> None:
    async with two_engines(free_port, deadline=2.0, rest=1.0) as (engine, (hung, good), clock):
        hung.gate.clear()
        for text in "abcdef":
            assert ids(await engine.encode(completion(text))) == [[ord(text)]]
        assert (len(hung.bodies), len(good.bodies)) == (1, 6)
        assert not engine.resting
        # after its rest one call finds out, and the others do not wait for that
        clock.now += 1.0
        answers = await asyncio.gather(*(engine.encode(completion(text)) for text in "ghij"))
        assert [ids(prompts) for prompts in answers] == [[[ord(text)]] for text in "ghij"]
        assert (len(hung.bodies), len(good.bodies)) == (2, 10)
        # it failed twice: two seconds
        clock.now += 1.99
        await engine.encode(completion("k"))
        await engine.encode(completion("l"))
        assert len(hung.bodies) == 2
        hung.gate.set()
        clock.now += 0.01
        for text in "mnop":
            assert ids(await engine.encode(completion(text))) == [[ord(text)]]
        assert len(hung.bodies) == 4


@pytest.mark.anyio
async def test_beside_one_that_fails_every_prompt_is_read(free_port: Callable[[], int]) -> None:
    async with two_engines(free_port, concurrency=1) as (engine, (failing, good), _):
        failing.status = 503
        for text in "abcd":
            assert ids(await engine.encode(completion(text))) == [[ord(text)]]
        assert (len(failing.bodies), len(good.bodies)) == (1, 4)


@pytest.mark.anyio
async def test_where_all_hang_each_fails_and_then_nobody_is_asked(
    free_port: Callable[[], int],
) -> None:
    async with two_engines(free_port, deadline=0.2, rest=1.0) as (engine, apps, clock):
        for app in apps:
            app.gate.clear()
        assert why(await engine.encode(completion("a")))[0] == "failed"
        # the second had half the time only, so it is not judged yet
        assert [len(app.bodies) for app in apps] == [1, 1]
        assert not engine.resting
        assert why(await engine.encode(completion("b"))) == (
            "failed",
            "the engine's /tokenize failed: /tokenize timed out after 0.2 s",
        )
        assert engine.resting
        assert why(await engine.encode(completion("c")))[0] == "resting"
        assert [len(app.bodies) for app in apps] == [1, 2]
        clock.now += 1.0
        assert not engine.resting


@pytest.mark.anyio
async def test_two_engines_have_one_deadline_together() -> None:
    timeouts: list[float] = []

    async def silent(*_: Any, timeout: float, **__: Any) -> Any:
        timeouts.append(timeout)
        await asyncio.sleep(timeout)
        raise UpstreamTimeout("nothing came", phase="first_byte")

    engine = EngineEncoder(silent, lambda: ["http://a", "http://b"], clock=Clock(), deadline=0.2)
    assert why(await engine.encode(completion("a"))) == (
        "failed",
        "the engine's /tokenize failed: nothing came",
    )
    first, second = timeouts
    assert first == 0.2
    assert 0.0 < second <= 0.1


@pytest.mark.anyio
async def test_who_is_slow_answers_all_the_same_where_the_other_is_no_faster(
    free_port: Callable[[], int],
) -> None:
    async with two_engines(free_port, deadline=4.0) as (engine, (first, second), _):
        first.gate.clear()
        second.gate.clear()
        prompt = asyncio.create_task(engine.encode(completion("a")))
        await second.arrived.get()
        first.gate.set()
        assert ids(await prompt) == [[97]]
        second.gate.set()
        # neither rests
        for text in "bcde":
            assert ids(await engine.encode(completion(text))) == [[ord(text)]]
        assert [len(app.bodies) for app in (first, second)] == [3, 3]


@pytest.mark.anyio
async def test_a_second_engine_takes_a_turn_of_its_own(free_port: Callable[[], int]) -> None:
    async with two_engines(free_port, deadline=0.2, concurrency=1) as (engine, (hung, good), _):
        hung.gate.clear()
        assert why(await engine.encode(completion("a")))[0] == "failed"
        assert (len(hung.bodies), len(good.bodies)) == (1, 0)
        assert not engine.resting


@pytest.mark.anyio
async def test_what_an_engine_refuses_is_not_asked_twice(free_port: Callable[[], int]) -> None:
    async with two_engines(free_port) as (engine, (first, second), _):
        first.status = 400
        assert why(await engine.encode(completion("a")))[0] == "refused"
        assert (len(first.bodies), len(second.bodies)) == (1, 0)
