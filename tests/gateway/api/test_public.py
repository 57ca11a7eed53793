"""Paths, methods and refusals of the public port."""

from __future__ import annotations

import asyncio
import gzip

import httpx
import pytest

from gateway.api.endpoints import EndpointTable
from gateway.api.serve import ServeOptions
from gateway.errors import ConfigError
from tests.faults import FaultyEngine, Script, answers, hangs, raw
from tests.gateway.api.rig import fast_timeouts, http, serving

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
ENTRIES = [
    {"id": "m", "object": "model", "max_model_len": 512, "permission": [{"id": "p"}], "root": "/models/m"},
    {"id": "org/lora", "object": "model", "parent": "m"},
    {"id": "m", "object": "model", "max_model_len": 256},
]


def error_of(answer: httpx.Response) -> dict[str, object]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


async def test_models_are_united_with_all_their_fields() -> None:
    async with serving(entries=ENTRIES) as door, http() as client:
        answer = await client.get(door.url + "/v1/models")
        assert answer.json() == {"object": "list", "data": ENTRIES[:2]}
        assert (await client.get(door.url + "/v1/models/org/lora")).json() == ENTRIES[1]
        missing = await client.get(door.url + "/v1/models/nope")
        assert missing.status_code == 404
        assert error_of(missing)["message"] == "the model 'nope' does not exist; there are: m, org/lora"


async def test_health_and_readiness() -> None:
    async with serving() as door, http() as client:
        assert (await client.get(door.url + "/health")).json() == {"status": "ok", "server": "prefix-gateway"}
        assert (await client.get(door.url + "/ready")).json() == {"status": "ready"}
    async with serving(not_ready="no worker has answered yet") as door, http() as client:
        assert (await client.get(door.url + "/health")).status_code == 200
        answer = await client.get(door.url + "/ready")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready", "reason": "no worker has answered yet"}


async def test_unknown_paths_and_wrong_methods() -> None:
    async with serving() as door, http() as client:
        answer = await client.get(door.url + "/v1/nothing")
        assert (answer.status_code, error_of(answer)["message"]) == (404, "no such path: GET /v1/nothing")
        answer = await client.get(door.url + PATH)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")
        assert error_of(answer)["code"] == "method_not_allowed"
        answer = await client.delete(door.url + "/v1/models")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        answer = await client.options(door.url + PATH)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, "POST, OPTIONS", b"")
        assert "access-control-allow-origin" not in answer.headers
        answer = await client.head(door.url + "/v1/models")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == str(len(b'{"object":"list","data":[]}'))
        assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            b"{bad",
            400,
            "not valid JSON: Expecting property name enclosed in double quotes (line 1, column 2)",
        ),
        (b"", 400, "empty"),
        (b"[1]", 400, "must be a JSON object"),
        (b'{"model":"\xff"}', 400, "not valid UTF-8 (byte 10)"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b"x" * 5000, 413, "more than 4096 bytes"),
    ],
)
async def test_bodies_that_no_engine_should_see(body: bytes, status: int, message: str) -> None:
    options = ServeOptions(max_body=1_000_000 if body[:2] == b"[[" else 4096)
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        answer = await client.post(door.url + PATH, content=body)
        assert answer.status_code == status
        error = error_of(answer)
        assert message in str(error["message"])
        assert error["type"] == "invalid_request_error"
        record = await door.records.next()
        assert (record.status, answer.headers["x-request-id"]) == (status, record.request_id)
        assert engine.seen == []


async def test_bombs_and_unknown_encodings() -> None:
    options = ServeOptions(max_body=100_000)
    bomb = gzip.compress(b"a" * 10_000_000)
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        answer = await client.post(door.url + PATH, content=bomb, headers={"content-encoding": "gzip"})
        assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")
        answer = await client.post(door.url + PATH, content=b"{}", headers={"content-encoding": "br"})
        assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported_encoding")
        half = gzip.compress(b"a" * 60_000)
        answer = await client.post(door.url + PATH, content=half + half, headers={"content-encoding": "gzip"})
        assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")
        small = gzip.compress(b'{"model":"m"}')
        none = gzip.compress(b"")
        for broken in (b"{}", small[:-4], small + b"more", small + none[:-1], small + 4096 * none):
            answer = await client.post(door.url + PATH, content=broken, headers={"content-encoding": "gzip"})
            assert answer.status_code == 400
            assert "gzip" in str(error_of(answer)["message"])
        assert engine.seen == []


@pytest.mark.parametrize(
    ("rest", "continues"),
    [
        (b"content-length: 100\r\n\r\n{", False),
        (b"content-length: 100\r\n\r\n", False),
        (b"transfer-encoding: chunked\r\n\r\n", False),
        (b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", False),
        (b"content-length: 100\r\nexpect: 100-continue\r\n\r\n", True),
    ],
)
async def test_a_body_that_does_not_come_is_given_up(rest: bytes, continues: bool) -> None:
    options = ServeOptions(body_timeout=0.05)
    async with FaultyEngine(answers()) as engine, serving(engine.url, options=options) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\n%s" % (PATH.encode(), rest))
        answer = await asyncio.wait_for(reader.read(), 10)
        if continues:
            answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.count(b"connection: close") == 1
        writer.close()
        assert engine.seen == []


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(expect: bytes) -> None:
    """RFC 9110, section 10.1.1: no 100 where the answer is known."""
    options = ServeOptions(max_body=99)
    async with FaultyEngine(answers()) as engine, serving(engine.url, options=options) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n%s\r\n" % (PATH.encode(), expect)
        writer.write(head)
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 10)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"more than 99 bytes" in answer
        writer.close()
        assert engine.seen == []


@pytest.mark.parametrize(
    "path",
    ["/tokenize", "/detokenize", "/v1/embeddings", "/v1/rerank", "/score", "/v1/audio/transcriptions"],
)
async def test_other_endpoints_go_by_load_to_a_worker_of_the_model(path: str) -> None:
    async with (
        FaultyEngine(answers(b'{"tokens":[1]}')) as engine,
        serving(engine.url) as door,
        http() as client,
    ):
        answer = await client.post(door.url + path, json={"model": "m", "prompt": "hi"})
        assert (answer.status_code, answer.json()) == (200, {"tokens": [1]})
        assert engine.seen[0].target == path
        (request, _, _), *_ = door.router.asked
        assert (request.model, request.messages, request.prompts) == ("m", None, None)
        expected = "/v1/audio/*" if path.startswith("/v1/audio/") else path
        assert (await door.records.next()).endpoint == expected


async def test_errors_of_the_messages_api_have_its_shape() -> None:
    async with serving() as door, http() as client:
        answer = await client.post(door.url + "/v1/messages", json={"model": "m"})
        assert answer.status_code == 503
        assert answer.json() == {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "no worker is healthy"},
        }


async def test_paths_that_configuration_adds() -> None:
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, extra_paths=("/custom", "/v2/*"), models={"": "m"}) as door,
        http() as client,
    ):
        assert (await client.get(door.url + "/custom?a=1")).status_code == 200
        assert (await client.put(door.url + "/v2/a/b", content=b"x")).status_code == 200
        assert (await client.head(door.url + "/custom")).status_code == 200
        assert [seen.method + " " + seen.target for seen in engine.seen] == [
            "GET /custom?a=1", "PUT /v2/a/b", "HEAD /custom",
        ]  # fmt: skip
        options = await client.options(door.url + "/custom")
        assert options.status_code == 204
        assert options.headers["allow"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
        assert (await client.get(door.url + "/v2/")).status_code == 404


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        (raw(then="close"), 502, "the worker closed the connection without an answer"),
        (raw(b"SSH-2.0\r\n", then="hang"), 502, "the worker sent bytes that are not HTTP"),
        (hangs(), 504, "the worker did not answer in time (first_byte)"),
    ],
)
async def test_clients_are_not_told_where_workers_are(script: Script, status: int, message: str) -> None:
    options = fast_timeouts(whole_answer=0.05)
    async with FaultyEngine(script) as engine, serving(engine.url, options=options) as door, http() as client:
        answer = await client.post(door.url + PATH, json={"model": "m", "messages": []})
        assert (answer.status_code, error_of(answer)["message"]) == (status, message)
        assert "127.0.0.1" not in answer.text
        assert engine.url.removeprefix("http://") in (await door.records.next()).error
        engine.refuse()
        answer = await client.post(door.url + PATH, json={"model": "m", "messages": []})
        assert error_of(answer)["message"] == "the worker refused the connection"


@pytest.mark.parametrize(
    "path",
    ["/v1/audio/../../reset_prefix_cache", "/v1/audio/.", "/v1/audio//x", "/v1/audio/a\\..\\b", "/v1/audio/"],
)
def test_a_pattern_cannot_be_left(path: str) -> None:
    assert EndpointTable().find(path) is None


@pytest.mark.parametrize("path", ["relative", "/a*b", "*"])
def test_paths_that_make_no_sense_are_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        EndpointTable((path,))


async def test_who_asks_is_read_from_the_request() -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        body = {"model": "m", "messages": [], "user": "u1", "service_tier": "flex"}
        await client.post(door.url + PATH, json=body)
        await client.post(door.url + PATH, json=body, headers={"x-session-id": "s1", "x-priority": "-99"})
        await client.post(door.url + PATH, json={"model": "m"}, headers={"x-priority": "soon"})
        callers = [caller for _, _, caller in door.router.asked]
        assert [(c.session, c.priority) for c in callers] == [("u1", 1), ("s1", -1), ("", 0)]
