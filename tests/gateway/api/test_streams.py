"""Streams: usage asked for and hidden, slow readers, the official client."""

from __future__ import annotations

import asyncio
import json

import openai
import psutil
import pytest

from gateway.api.serve import ServeOptions
from gateway.routing.route import Outcome
from gateway.types import Usage
from tests.faults import (
    DONE,
    SSE_HEAD,
    FaultyEngine,
    answers,
    chunk,
    floods,
    raw,
    streams,
    token,
    usage_chunk,
)
from tests.gateway.api.rig import http, serving

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
USAGE = usage_chunk(100, 2, 0)
STREAM = [token("a"), token("b"), USAGE, DONE]


@pytest.mark.parametrize(
    ("options", "sent_on", "hidden"),
    [
        (None, {"include_usage": True}, True),
        ({"include_usage": False}, {"include_usage": True}, True),
        ({"continuous_usage_stats": False}, {"continuous_usage_stats": False, "include_usage": True}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        # of a wrong type: the engine is the one to refuse it
        ("yes", "yes", False),
    ],
)
async def test_usage_is_asked_for_once_and_shown_to_who_asked(
    options: object, sent_on: object, hidden: bool
) -> None:
    body = CHAT if options is None else {**CHAT, "stream_options": options}
    async with FaultyEngine(streams(STREAM)) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, json=body)
        assert engine.seen[0].json() == {**CHAT, "stream_options": sent_on}
        assert answer.content == b"".join(STREAM).replace(USAGE, b"" if hidden else USAGE)
        assert door.router.finished[0][2] == Usage(100, 2, 0)


async def test_a_stream_without_the_option_goes_out_as_it_came() -> None:
    sent = json.dumps(CHAT).encode()
    options = ServeOptions(ask_for_usage=False)
    async with (
        FaultyEngine(streams([token("a"), DONE])) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        await client.post(door.url + PATH, content=sent)
        assert engine.seen[0].body == sent
        assert door.router.finished[0][2] is None


async def test_answers_in_one_piece_are_not_asked_for_usage() -> None:
    sent = b'{ "model" : "m", "messages":[{"role":"user","content":"hi"}] , "unknown":1.50 }'
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        await client.post(door.url + PATH, content=sent)
        assert engine.seen[0].body == sent


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_a_stream_cut_into_small_pieces_arrives_whole(size: int) -> None:
    text = token("Grüße 🎈") + USAGE + DONE
    pieces = [chunk(text[i : i + size]) for i in range(0, len(text), size)]
    script = raw(
        SSE_HEAD, b"".join(pieces[:3]), *pieces[3:30], b"".join(pieces[30:]) + b"0\r\n\r\n", then="keep"
    )
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, json=CHAT)
        assert answer.content == token("Grüße 🎈") + DONE
        assert door.router.finished[0][2] == Usage(100, 2, 0)


async def _stall(engine: FaultyEngine, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that asks and then reads nothing, until the engine can't write any more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    body = json.dumps(CHAT).encode()
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body
    )
    await asyncio.wait_for(engine.arrived.wait(), 10)
    last = -1
    async with asyncio.timeout(30):
        while engine.bytes_sent != last:
            last = engine.bytes_sent
            await asyncio.sleep(0.3)
    return reader, writer


async def test_a_reader_that_stops_holds_its_worker_back_and_memory_stays() -> None:
    total = 50 * 1024 * 1024
    async with FaultyEngine(floods(total), floods(total)) as engine, serving(engine.url) as door:
        # once for the memory that the first such stream leaves with the allocator
        _, writer = await _stall(engine, door.port)
        writer.close()
        await door.records.next()
        engine.arrived.clear()
        engine.bytes_sent = 0
        process = psutil.Process()
        before = process.memory_info().rss
        reader, writer = await _stall(engine, door.port)
        grown = process.memory_info().rss - before
        # the rest waits in the engine: what is out lies in the kernel's socket buffers
        assert engine.bytes_sent < total
        assert grown < 768 * 1024
        got = 0
        while data := await reader.read(1 << 20):
            got += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
        assert got > total
        writer.close()
        assert (await door.records.next()).outcome is Outcome.OK
        assert door.router.outcomes == [Outcome.CANCELLED, Outcome.OK]


async def test_a_slow_reader_slows_nobody_else() -> None:
    async with FaultyEngine(floods(20 * 1024 * 1024), streams(STREAM)) as engine, serving(engine.url) as door:
        _, writer = await _stall(engine, door.port)
        async with http() as client:
            for _ in range(5):
                answer = await client.post(door.url + PATH, json=CHAT)
                assert answer.content == b"".join(STREAM).replace(USAGE, b"")
        writer.close()
        async with asyncio.timeout(10):
            while len(door.records.all) < 6:  # noqa: ASYNC110 - any of six records may be the last
                await asyncio.sleep(0.01)
        assert door.router.outcomes == [*[Outcome.OK] * 5, Outcome.CANCELLED]


async def test_hundreds_of_streams_at_once() -> None:
    tokens = [token(str(n)) for n in range(5)]
    body = json.dumps(CHAT)
    question = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    async def one(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(question)
            answer = await reader.readuntil(b"0\r\n\r\n")
        finally:  # a loop can't be closed over what is open, and its complaint would hide what went wrong
            writer.close()
            await writer.wait_closed()
        return answer.count(b'"content"')

    async with FaultyEngine(streams([*tokens, USAGE, DONE])) as engine, serving(engine.url) as door:
        async with asyncio.TaskGroup() as group:  # where one fails, all others have ended, too
            clients = [group.create_task(one(door.port)) for _ in range(200)]
        assert [client.result() for client in clients] == [5] * 200
        async with asyncio.timeout(10):
            while len(door.records.all) < 200:  # noqa: ASYNC110 - any of them may be the last
                await asyncio.sleep(0.01)
        assert door.router.outcomes == [Outcome.OK] * 200


# -- the official client -------------------------------------------------------------------------------------

ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
    }
).encode()


def official(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="sk-test", max_retries=0, http_client=http())


async def test_the_openai_client_streams_and_does_not() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with (
        FaultyEngine(answers(ANSWER), streams(STREAM)) as engine,
        serving(engine.url) as door,
        official(door.url) as client,
    ):
        whole = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            tools=tools,  # type: ignore[arg-type]
        )
        assert whole.choices[0].message.content == "hello"
        assert engine.seen[0].json()["tools"] == tools
        assert engine.seen[0].header("authorization") == ["Bearer sk-test"]
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = [part.choices[0].delta.content async for part in stream]
        assert text == ["a", "b"]


async def test_the_openai_client_raises_the_right_class() -> None:
    died = raw(SSE_HEAD, chunk(token("a")), then="reset")
    bad = answers(b'{"error":{"message":"too long","type":"BadRequestError","code":400}}', 400)
    messages = [{"role": "user", "content": "hi"}]
    async with (
        FaultyEngine(bad, answers(b"{}", 429), died) as engine,
        serving(engine.url) as door,
        official(door.url) as client,
    ):
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=messages)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.APIError, match="inside an answer"):
            [part async for part in stream]
