"""The table of what happens when things go wrong: what the client sees, the outcome, the lease.

`serving` asserts at its end that every lease is back and that no connection is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest

from gateway.api.retry import RetryPolicy
from gateway.api.serve import ServeOptions
from gateway.routing.route import Outcome
from gateway.types import Usage
from tests.faults import (
    DONE,
    SSE_HEAD,
    FaultyEngine,
    Script,
    answers,
    chunk,
    hangs,
    head,
    raw,
    streams,
    token,
    usage_chunk,
)
from tests.gateway.api.rig import fast_timeouts, http, serving

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GOOD = answers(b'{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":3}}')
PATH = "/v1/chat/completions"


async def post(url: str, body: object = CHAT, **more: object) -> httpx.Response:
    async with http() as client:
        return await client.post(url + PATH, json=body, **more)  # type: ignore[arg-type]


def error_of(answer: httpx.Response) -> dict[str, object]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


# -- before the first byte: another worker -----------------------------------------------------------------

FAILURES: list[tuple[str, Script, Outcome]] = [
    ("closes", raw(then="close"), Outcome.UPSTREAM_ERROR),
    ("resets", raw(then="reset"), Outcome.UPSTREAM_ERROR),
    ("half a head", raw(b"HTTP/1.1 200 O", then="close"), Outcome.UPSTREAM_ERROR),
    ("not HTTP", raw(b"SSH-2.0-OpenSSH\r\n", then="hang"), Outcome.UPSTREAM_ERROR),
    ("502", answers(b"{}", 502), Outcome.UPSTREAM_ERROR),
    ("503", answers(b"{}", 503), Outcome.UPSTREAM_ERROR),
    ("504 HTML", answers(b"<html>", 504, content_type="text/html"), Outcome.UPSTREAM_ERROR),
    ("a head, then nothing", raw(SSE_HEAD, then="close"), Outcome.UPSTREAM_ERROR),
    ("half a JSON answer", raw(head(200, "content-type: application/json", "content-length: 90") + b'{"a"',
                               then="close"), Outcome.UPSTREAM_ERROR),
    ("JSON that only the close ends", raw(head(200, "content-type: application/json") + b'{"a": [1,',
                                          then="close"), Outcome.UPSTREAM_ERROR),
    ("half an event", raw(SSE_HEAD, chunk(b'data: {"cho'), then="reset"), Outcome.UPSTREAM_ERROR),
    ("hangs", hangs(), Outcome.TIMEOUT),
    ("head, then hangs", raw(SSE_HEAD, then="hang"), Outcome.TIMEOUT),
    ("429", answers(b"{}", 429), Outcome.BUSY),
    ("503 with Retry-After", answers(b"{}", 503, "retry-after: 1"), Outcome.BUSY),
    ("503 of vLLM's queue limit", answers(b'{"error":{"message":"The engine is currently busy and cannot '
                                          b'accept new requests. Please try again later or on a different '
                                          b'instance.","code":503}}', 503), Outcome.BUSY),
    ("503 of SGLang's queue limit", answers(b'{"object":"error","message":"The request queue is full.",'
                                            b'"code":503}', 503), Outcome.BUSY),
]  # fmt: skip


@pytest.mark.parametrize(("script", "outcome"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
async def test_another_worker_answers_and_the_client_notices_nothing(
    script: Script, outcome: Outcome
) -> None:
    options = fast_timeouts(first_byte=0.1, whole_answer=0.1)
    async with (
        FaultyEngine(script) as bad,
        FaultyEngine(GOOD) as good,
        serving(bad.url, good.url, options=options) as door,
    ):
        answer = await post(door.url)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 3)
        assert answer.headers["x-gateway-worker"] == "w1"
        assert door.router.outcomes == [outcome, Outcome.OK]
        assert door.router.finished[1][2] == Usage(100, 3, None)
        # never the same worker again in this request
        assert [exclude for _, exclude, _ in door.router.asked] == [frozenset(), frozenset({"w0"})]
        record = await door.records.next()
        assert [t.outcome for t in record.tries] == [outcome, Outcome.OK]
        assert (record.status, record.outcome, record.worker) == (200, Outcome.OK, "w1")
        assert (len(bad.seen), len(good.seen)) == (1, 1)


async def test_a_refused_connection_moves_on(free_port: Callable[[], int]) -> None:
    async with FaultyEngine(GOOD) as good, serving(f"http://127.0.0.1:{free_port()}", good.url) as door:
        assert (await post(door.url)).status_code == 200
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR, Outcome.OK]


async def test_tries_are_bounded_and_the_last_answer_is_passed_on() -> None:
    busy = answers(b'{"error":{"message":"loading"}}', 503)
    async with FaultyEngine(busy) as engine, serving(*[engine.url] * 5) as door:
        answer = await post(door.url)
        assert (answer.status_code, answer.json()) == (503, {"error": {"message": "loading"}})
        assert answer.headers["x-gateway-worker"] == "w2"
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR] * 3
        assert (await door.records.next()).status == 503


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (answers(b"<html>Bad gateway", 502, content_type="text/html"), 502),
        (raw(then="close"), 502),
        (hangs(), 504),
    ],
)
async def test_when_all_have_failed_the_client_gets_an_error_it_can_read(script: Script, status: int) -> None:
    options = fast_timeouts(first_byte=0.05, whole_answer=0.05)
    async with FaultyEngine(script) as engine, serving(engine.url, options=options) as door:
        answer = await post(door.url)
        assert (answer.status_code, error_of(answer)["type"]) == (status, "upstream_error")
        assert answer.headers["x-request-id"] == (await door.records.next()).request_id


async def test_the_total_limit_spans_all_tries() -> None:
    options = fast_timeouts(total=0.15)
    async with FaultyEngine(hangs()) as engine, serving(*[engine.url] * 3, options=options) as door:
        answer = await post(door.url)
        assert answer.status_code == 504
        assert "total" in str(error_of(answer)["message"])
        assert door.router.outcomes == [Outcome.TIMEOUT]


# -- busy, refused, none there -----------------------------------------------------------------------------


async def test_all_busy_is_429_with_retry_after() -> None:
    async with (
        FaultyEngine(answers(b"{}", 429, "retry-after: 7")) as engine,
        serving(*[engine.url] * 2) as door,
    ):
        answer = await post(door.url)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert error_of(answer)["type"] == "rate_limit_error"
        assert door.router.outcomes == [Outcome.BUSY, Outcome.BUSY]
        assert door.router.asked_to_wait == [7.0, 7.0]
        assert (await door.records.next()).outcome is Outcome.BUSY


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 500, 501])
async def test_other_errors_pass_untouched_and_are_not_tried_again(status: int) -> None:
    body = b'{"error": {"message":"no",  "code":%d}}' % status
    async with (
        FaultyEngine(answers(body, status, "x-own: 1")) as engine,
        serving(engine.url, engine.url) as door,
    ):
        answer = await post(door.url)
        assert (answer.status_code, answer.content, answer.headers["x-own"]) == (status, body, "1")
        assert answer.headers["x-gateway-worker"] == "w0"
        expected = Outcome.UPSTREAM_ERROR if status == 500 else Outcome.CLIENT_ERROR
        assert door.router.outcomes == [expected]
        assert len(engine.seen) == 1


async def test_html_of_a_500_passes_as_it_is() -> None:
    script = answers(b"<h1>oops</h1>", 500, content_type="text/html")
    async with FaultyEngine(script) as engine, serving(engine.url) as door:
        answer = await post(door.url)
        assert (answer.status_code, answer.text) == (500, "<h1>oops</h1>")


async def test_no_healthy_worker_is_503_at_once() -> None:
    async with serving() as door:
        answer = await post(door.url)
        assert (answer.status_code, error_of(answer)["message"]) == (503, "no worker is healthy")
        record = await door.records.next()
        assert (record.status, record.worker, record.tries) == (503, None, ())


async def test_an_unknown_model_is_404() -> None:
    async with FaultyEngine(GOOD) as engine, serving(engine.url) as door:
        answer = await post(door.url, {**CHAT, "model": "nope"})
        assert answer.status_code == 404
        assert error_of(answer) == {
            "message": "model 'nope' does not exist; there are: m",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        record = await door.records.next()
        assert (record.model, record.asked_model, record.outcome) == ("", "nope", Outcome.CLIENT_ERROR)


async def test_a_path_that_the_engine_lacks_is_a_404_in_the_clients_own_shape() -> None:
    lacks = answers(b'{"detail":"Not Found"}', 404)
    async with FaultyEngine(lacks) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + "/v1/embeddings", json={"model": "m", "input": "x"})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
        assert error_of(answer) == {
            "message": "the engine of model 'm' does not serve /v1/embeddings",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }
        record = await door.records.next()
        assert (record.outcome, record.usage) == (Outcome.CLIENT_ERROR, None)
        answer = await client.post(door.url + "/v1/messages", json=CHAT)
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["message"] == "the engine of model 'm' does not serve /v1/messages"
        assert len(engine.seen) == 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"not found"}',  # as long, and another
        b'{"error":{"message":"The model `x` does not exist.","code":404}}',
        b"",
    ],
)
async def test_any_other_404_passes_as_it_is(body: bytes) -> None:
    async with FaultyEngine(answers(body, 404)) as engine, serving(engine.url) as door:
        answer = await post(door.url)
        assert (answer.status_code, answer.content) == (404, body)


# -- after the first byte ----------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("half", [b"", chunk(b'data: {"choices":[{"delta":{"con')])
async def test_a_stream_that_dies_ends_with_an_error_event(then: str, half: bytes) -> None:
    script = raw(SSE_HEAD, chunk(token("a")), chunk(token("b")), *([half] if half else []), then=then)
    async with FaultyEngine(script) as bad, FaultyEngine(GOOD) as good, serving(bad.url, good.url) as door:
        answer = await post(door.url, {**CHAT, "stream": True})
        assert answer.status_code == 200
        prefix = (token("a") + token("b")).decode()
        assert answer.text.startswith(prefix)
        last = answer.text[len(prefix) :]
        assert last.startswith('data: {"error":{"message":"')
        assert last.endswith("}\n\n")
        assert '"type":"upstream_error"' in last
        assert len(good.seen) == 0
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR]
        record = await door.records.next()
        assert (record.status, record.outcome, record.pieces) == (200, Outcome.UPSTREAM_ERROR, 2)


async def test_a_stream_that_falls_silent_ends_with_an_error_event() -> None:
    script = raw(SSE_HEAD, chunk(token("a")), then="hang")
    async with FaultyEngine(script) as engine, serving(engine.url, options=fast_timeouts(idle=0.1)) as door:
        answer = await post(door.url, {**CHAT, "stream": True})
        assert "(idle)" in answer.text
        assert door.router.outcomes == [Outcome.TIMEOUT]


async def test_a_stream_that_only_the_close_ends_needs_its_done() -> None:
    bare = head(200, "content-type: text/event-stream")
    async with (
        FaultyEngine(
            raw(bare, token("a"), then="close"), raw(bare, token("a"), DONE, then="close")
        ) as engine,
        serving(engine.url) as door,
    ):
        died = await post(door.url, {**CHAT, "stream": True})
        assert '"error"' in died.text
        whole = await post(door.url, {**CHAT, "stream": True})
        assert whole.content == token("a") + DONE
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR, Outcome.OK]


async def test_an_error_that_the_engine_reports_in_its_stream_counts_against_it() -> None:
    event = b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\n'
    async with FaultyEngine(streams([token("a"), event, DONE])) as engine, serving(engine.url) as door:
        answer = await post(door.url, {**CHAT, "stream": True})
        assert answer.content == token("a") + event + DONE
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR]


async def test_another_body_that_dies_is_left_incomplete() -> None:
    """Audio, say: there is no way to say "error" inside it, so the connection is cut."""
    script = raw(head(200, "content-type: audio/wav", "content-length: 1000") + b"RIFF" * 20, then="close")
    async with FaultyEngine(script) as engine, serving(engine.url) as door:
        async with http() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(door.url + "/v1/audio/speech", json={"model": "m", "input": "x"})
        assert door.router.outcomes == [Outcome.UPSTREAM_ERROR]


async def test_a_length_that_promises_too_little_gives_what_it_promised() -> None:
    script = raw(
        head(200, "content-type: application/json", "content-length: 2") + b"{}trailing", then="keep"
    )
    async with FaultyEngine(script, GOOD) as engine, serving(engine.url) as door:
        assert (await post(door.url)).text == "{}"
        assert (await post(door.url)).status_code == 200
        assert engine.connections == 2


async def test_usage_and_first_byte_reach_the_router() -> None:
    events = [token("a"), token("b"), usage_chunk(100, 2, 48), DONE]
    async with FaultyEngine(streams(events)) as engine, serving(engine.url) as door:
        began = time.perf_counter()
        await post(door.url, {**CHAT, "stream": True})
        took = time.perf_counter() - began
        ((worker, outcome, usage, ttft),) = door.router.finished
        assert (worker, outcome, usage) == ("w0", Outcome.OK, Usage(100, 2, 48))
        assert ttft is not None
        assert 0 < ttft < took
        record = await door.records.next()
        assert (record.prompt_tokens, record.matched_tokens, record.reusable_tokens) == (100, 48, 64)
        assert (record.usage, record.pieces, record.streamed) == (Usage(100, 2, 48), 2, True)
        assert record.ttft_s is not None
        assert record.gap_mean_s is not None
        assert record.ttft_s + record.gap_mean_s <= record.total_s < took


async def test_decode_load_moves_with_the_first_byte() -> None:
    async with (
        FaultyEngine(raw(SSE_HEAD, chunk(token("a")), then="hang")) as engine,
        serving(engine.url) as door,
    ):
        (load,) = door.router.loads
        async with (
            http() as client,
            client.stream("POST", door.url + PATH, json={**CHAT, "stream": True}) as answer,
        ):
            async for _ in answer.aiter_raw():
                break
            # 100 tokens of prompt, 48 of them matched
            assert (load.requests, load.waiting_tokens, load.decoding_tokens) == (1, 0, 100)
        assert (await door.records.next()).status == 499


async def test_a_fault_of_our_own_is_a_500_and_leaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyEngine(GOOD) as engine, serving(engine.url) as door:
        door.router.models["m"] = "\ud800"  # a name that no wire can carry
        answer = await post(door.url, {**CHAT, "user": "secret"})
        assert (answer.status_code, error_of(answer)["message"]) == (500, "internal error")
        assert "secret" not in caplog.text
        record = await door.records.next()
        assert (record.status, record.outcome) == (500, Outcome.INTERNAL)
        assert door.router.outcomes == [Outcome.INTERNAL]


def test_backoff_lies_between_half_and_one_and_a_half_and_doubles() -> None:
    policy = RetryPolicy(base=0.1, longest=0.3)
    assert [policy.pause(n, lambda: 0.0) for n in (1, 2, 3, 4)] == pytest.approx([0.05, 0.1, 0.15, 0.15])
    assert [policy.pause(n, lambda: 1.0) for n in (1, 2, 3)] == pytest.approx([0.15, 0.3, 0.45])
    assert ServeOptions().retry.tries == 3
