"""What crosses the gateway, byte for byte, and what must not."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import says_once, says_twice
from gateway.api.door import Door
from gateway.api.retry import RetryPolicy
from gateway.api.serve import ServeOptions
from tests.faults import FaultyEngine, answers, head, raw
from tests.gateway.api.crossing import BODY, PATH, through
from tests.gateway.api.rig import http, serving

pytestmark = pytest.mark.anyio


async def test_the_body_goes_on_as_it_came() -> None:
    assert (await through()).body == BODY


@pytest.mark.parametrize(
    "body", [b'{"model":"m","messages":"not a list"}', b'{"model":"m","messages":[1,null]}']
)
async def test_a_prompt_that_makes_no_sense_goes_on_too(body: bytes) -> None:
    assert (await through(body)).body == body


async def test_json_that_only_python_takes_goes_on() -> None:
    body = b'{"model":"m","messages":[],"temperature":NaN,"x":"\\ud800"}'
    assert (await through(body)).body == body


async def test_an_alias_changes_the_model_and_nothing_else() -> None:
    body = b'{"top_p": 1.0, "model":"nice", "messages":[{"role":"user","content":"\\u00e9\\/ "}],"n":1e0}'
    seen = await through(body, models={"nice": "real/name"})
    assert seen.body == (
        b'{"top_p":1.0,"model":"real/name","messages":[{"role":"user","content":"\\u00e9\\/ "}],"n":1e0}'
    )


async def test_an_alias_in_a_form_with_files() -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nnice\r\n--b--\r\n'
    )
    seen = await through(
        form,
        {"content-type": "multipart/form-data; boundary=b"},
        "/v1/audio/transcriptions",
        models={"nice": "whisper"},
    )
    assert seen.body == form.replace(b"nice", b"whisper")
    assert seen.header("content-length") == [str(len(seen.body))]


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", zlib.compress(BODY, wbits=-15)),
        ("identity", BODY),
        ("deflate, gzip", gzip.compress(zlib.compress(BODY))),
    ],
)
async def test_packed_bodies_are_unpacked_and_framed_anew(encoding: str, packed: bytes) -> None:
    seen = await through(packed, {"content-encoding": encoding})
    assert seen.body == BODY
    assert seen.header("content-encoding") == []
    assert seen.header("content-length") == [str(len(BODY))]


@pytest.mark.parametrize("cuts", [(0,), (1,), (30, 60), (0, 0, len(BODY))])
async def test_gzip_of_several_members_is_one_body(cuts: tuple[int, ...]) -> None:
    """RFC 1952, section 2.2: a file is a series of members, also of empty ones."""
    ends = [*cuts, len(BODY)]
    parts = [BODY[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    packed = b"".join(map(gzip.compress, parts))
    assert (await through(packed, {"content-encoding": "gzip"})).body == BODY


@pytest.mark.parametrize(
    "twice", [b'"model":"other"', b'"mod\\u0065l" : "other"', b'"cache_salt":"a"', b'"n":1']
)
@pytest.mark.parametrize("where", ["first", "last"])
async def test_a_name_that_stands_there_twice_goes_on_as_it_was_judged(twice: bytes, where: str) -> None:
    """The last of two is judged, as Python reads it. Every other value keeps its bytes."""
    judged = b'"n":7,"cache_salt":"own","model":"m","x":[1.50, {"n" :1,"n":2}]'
    if where == "last":
        judged, twice = twice.replace(b"other", b"m"), judged
    seen = await through(b'{"messages":[],' + twice + b", " + judged + b"}")
    names = [name for name, _ in json.loads(seen.body, object_pairs_hook=list)]
    assert len(names) == len(set(names))
    said = {**json.loads(b"{%s}" % twice), **json.loads(b"{%s}" % judged)}
    assert seen.json() == {"messages": [], **said}
    assert b'[1.50, {"n" :1,"n":2}]' in seen.body


@pytest.mark.parametrize(
    ("body", "twice"),
    [
        (b'{"a":1,"b":[{"a":1,"a":2}],"c":"\\"a\\":1"}', False),
        (b' {\r\n "a" : 1 ,\t"b\\"" : {"a":1} } ', False),
        (b'{"\xc3\xa9":1,"\\u00e8":"a,\\"b"}', False),
        (b'{"a":NaN,"b":{"a":1,"a":2}}', False),
        (b"{ }", False),
        (b'{"a":1,"a":1}', True),
        (b'{"a":1,"b":2,"a":1}', True),
        (b'{"a":1, "\\u0061":1}', True),
        (b'{"a":{"x":1},"b":2,"a":3}', True),
        (b'{"b":1,"a":NaN,"a":2}', True),
        (b'{"a":1,"":2,"":3}', True),
    ],
)
def test_two_members_of_one_name(body: bytes, twice: bool) -> None:
    assert says_twice(body) is twice
    assert not (twice and says_once(body, json.loads(body)))


@pytest.mark.parametrize(
    ("body", "once"),
    [
        (b"{}", True),
        (b'{"model":"m","messages":[{"role":"user","content":"\\"model\\": a"}],"n":1}', True),
        (b' {\r\n"a" : 1 ,\t"b" : {"c":1, "c":2} } ', True),
        (b'{"a":1,"b":{"a":1}}', False),  # one of them is deeper, which only reading tells
        (b'{"user":1,"messages":[{"role":"user"}]}', False),
        (b'{"a":1,"b":"\\u0061"}', False),
        (b'{"a":1,"a/b":1}', False),  # a slash may be spelt in two ways
        (b'{"a":1,"text":"%s"}' % (b"x" * 5000), False),
        (b"{%s}" % b",".join(b'"n%d":1' % n for n in range(25)), False),
    ],
)
def test_what_plainly_has_one_of_each_name(body: bytes, once: bool) -> None:
    assert says_once(body, json.loads(body)) is once
    assert not says_twice(body)


_NAMES = st.sampled_from(["a", "b", "model", "é", "", '"', "a/b", "\\", "\n"])
_SPELT = st.builds(lambda name, escaped: json.dumps(name, ensure_ascii=escaped), _NAMES, st.booleans())
_VALUES = st.one_of(
    _SPELT,
    st.builds(lambda name, value: f"{{{name}:{value}}}", _SPELT, _SPELT),
    st.sampled_from(["1", "[]", '"\\"a\\": 1"', '"\\u0061"', "NaN"]),
)


@given(st.lists(st.tuples(_SPELT, _VALUES), max_size=5), st.sampled_from([",", ", ", " ,\n"]))
def test_whatever_plainly_has_one_of_each_name_has(members: list[tuple[str, str]], comma: str) -> None:
    body = b"{%s}" % comma.join(f"{name}: {value}" for name, value in members).encode()
    names = [json.loads(name) for name, _ in members]
    if says_once(body, json.loads(body)):
        assert len(names) == len(set(names))


async def test_a_large_packed_body() -> None:
    body = json.dumps({"model": "m", "prompt": [i * 7919 % 50_000 for i in range(300_000)]}).encode()
    packed = gzip.compress(body)
    assert len(packed) > 256 * 1024
    assert (await through(packed, {"content-encoding": "gzip"}, "/v1/completions")).body == body


async def test_a_chunked_upload_gets_a_length() -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % PATH.encode())
        for i in range(0, len(BODY), 20):
            piece = BODY[i : i + 20]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()
        seen = engine.seen[0]
        assert (seen.body, seen.header("transfer-encoding")) == (BODY, [])
        assert seen.header("content-length") == [str(len(BODY))]


async def test_headers_to_the_worker() -> None:
    seen = await through(
        headers=[
            ("authorization", "Bearer k"),
            ("x-twice", "1"),
            ("x-twice", "2"),
            ("connection", "x-private, keep-alive"),
            ("x-private", "no"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy-authorization", "no"),
            ("accept-encoding", "gzip"),
            ("x-request-id", "mine-1"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-data-parallel-rank", "3"),
            ("x-smg-anything", "no"),
        ]
    )
    assert seen.header("authorization") == ["Bearer k"]
    assert seen.header("x-twice") == ["1", "2"]
    assert seen.header("x-request-id") == ["mine-1"]
    assert seen.header("accept-encoding") == ["identity"]
    assert seen.header("traceparent") == ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
    for gone in (
        "connection",
        "x-private",
        "keep-alive",
        "te",
        "proxy-authorization",
        "x-data-parallel-rank",
    ):
        assert seen.header(gone) == [], gone
    assert seen.header("x-smg-anything") == []
    assert len(seen.header("host")) == len(seen.header("content-length")) == 1


async def test_connection_cannot_take_away_what_the_message_means() -> None:
    seen = await through(headers={"connection": "authorization, content-type", "authorization": "Bearer k"})
    assert seen.header("authorization") == ["Bearer k"]


async def test_a_clients_key_stays_here_where_the_gateway_checks_it() -> None:
    seen = await through(
        headers={"authorization": "Bearer k"}, options=ServeOptions(forward_authorization=False)
    )
    assert seen.header("authorization") == []


@pytest.mark.parametrize("given", ["", "a" * 200, "späß"])
async def test_an_unfit_request_id_is_replaced(given: str) -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY, headers=[(b"x-request-id", given.encode())])
        (sent,) = engine.seen[0].header("x-request-id")
        assert answer.headers["x-request-id"] == sent
        assert len(sent) == 32
        assert sent != given


async def test_headers_to_the_client() -> None:
    lines = [
        "set-cookie: a=1",
        "Set-Cookie: b=2",
        "X-Own: 1",
        "connection: keep-alive, x-private",
        "x-private: no",
        "keep-alive: timeout=5",
        "server: uvicorn",
        "date: Mon, 01 Jan 2024 00:00:00 GMT",
        "x-request-id: the engine's",
        "x-gateway-worker: the engine's",
        "x-gateway-prompt-tokens: 1",
        "x-gateway-matched-tokens: 2",
    ]
    async with (
        FaultyEngine(answers(b"{}", 200, *lines)) as engine,
        serving(engine.url) as door,
        http() as client,
    ):
        answer = await client.post(door.url + PATH, content=BODY, headers={"x-request-id": "mine"})
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert answer.headers["x-own"] == "1"
        assert answer.headers.get_list("x-request-id") == ["mine"]
        assert answer.headers.get_list("x-gateway-worker") == ["w0"]
        assert answer.headers.get_list("x-gateway-prompt-tokens") == ["100"]
        assert answer.headers.get_list("x-gateway-matched-tokens") == ["48"]
        assert answer.headers.get_list("content-length") == ["2"]
        assert len(answer.headers.get_list("date")) == 1
        assert "2024" not in answer.headers["date"]
        for gone in ("connection", "x-private", "keep-alive"):
            assert gone not in answer.headers


async def test_a_packed_answer_passes_as_it_is() -> None:
    packed = gzip.compress(b'{"choices":[]}')
    script = answers(packed, 200, "content-encoding: gzip")
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        async with client.stream("POST", door.url + PATH, content=BODY) as answer:
            assert b"".join([part async for part in answer.aiter_raw()]) == packed
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-length"] == str(len(packed))


async def test_an_answer_that_lies_about_its_encoding_passes_as_it_is() -> None:
    script = answers(b'{"choices":[]}', 200, "content-encoding: gzip")
    async with (
        FaultyEngine(script) as engine,
        serving(engine.url) as door,
        http() as client,
        client.stream("POST", door.url + PATH, content=BODY) as answer,
    ):
        assert b"".join([part async for part in answer.aiter_raw()]) == b'{"choices":[]}'


TELLING = b'{"choices": [{"n": 1.50}], "kv_transfer_params": {"remote_block_ids": [1]}}'
CLEARED = b'{"choices":[{"n": 1.50}]}'
EVENT = b"data: " + TELLING + b"\n\n"
DONE = b"data: [DONE]\n\n"


def bare(data: bytes) -> bytes:
    """Deflate without zlib's head."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS = [("gzip", gzip.compress), ("X-GZIP", gzip.compress), ("deflate", zlib.compress), ("deflate", bare)]


@pytest.mark.parametrize("path", [PATH, "/v1/embeddings"])
@pytest.mark.parametrize(("coding", "pack"), PACKERS)
async def test_a_packed_answer_does_not_hide_transfer_fields(path: str, coding: str, pack: Any) -> None:
    script = answers(pack(TELLING), 200, f"content-encoding: {coding}")
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + path, content=BODY)
        assert (answer.status_code, answer.content) == (200, CLEARED)
        assert answer.headers["content-length"] == str(len(CLEARED))
        assert "content-encoding" not in answer.headers


async def test_one_that_only_says_it_is_packed_does_not_hide_them_either() -> None:
    script = answers(TELLING, 200, "content-encoding: gzip")
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        assert (await client.post(door.url + PATH, content=BODY)).content == CLEARED


@pytest.mark.parametrize("path", [PATH, "/v1/audio/speech"])
@pytest.mark.parametrize(("coding", "pack"), [("identity", bytes), *PACKERS])
async def test_a_packed_stream_is_unpacked_and_cleared(path: str, coding: str, pack: Any) -> None:
    packed = pack(EVENT + DONE)
    lines = [packed[n : n + 1] for n in range(len(packed))]
    length = f"content-length: {len(packed)}"
    script = raw(
        head(200, "content-type: text/event-stream", f"content-encoding: {coding}", length),
        lines[0], lines[1], b"".join(lines[2:20]), b"".join(lines[20:]), then="keep",
    )  # fmt: skip
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + path, content=BODY)
        assert answer.content == b"data: " + CLEARED + b"\n\n" + DONE
        assert coding == "identity" or "content-encoding" not in answer.headers


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"\x0b\x02\x80{}\x03"),
        ("gzip, gzip", gzip.compress(gzip.compress(TELLING))),
        ("gzip", gzip.compress(TELLING)[:-9]),
        ("gzip", gzip.compress(TELLING) + gzip.compress(TELLING)),
        ("gzip", gzip.compress(b" " * 3_000_000)),
    ],
    ids=["unknown", "twice", "cut", "two", "large"],
)
async def test_what_cannot_be_looked_into_is_the_engines_fault(kind: str, coding: str, body: bytes) -> None:
    script = answers(body, 200, f"content-encoding: {coding}", content_type=kind)
    options = ServeOptions(retry=RetryPolicy(tries=1), max_answer=1_000_000)
    async with (
        FaultyEngine(script) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        answer = await client.post(door.url + PATH, content=BODY)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "upstream_error")


async def test_an_open_door_passes_every_coding() -> None:
    script = answers(b"\x0b\x02\x80{}\x03", 200, "content-encoding: br")
    async with (
        FaultyEngine(script) as engine,
        serving(engine.url, options=ServeOptions(door=Door.open())) as door,
        http() as client,
        client.stream("POST", door.url + PATH, content=BODY) as answer,
    ):
        assert b"".join([part async for part in answer.aiter_raw()]) == b"\x0b\x02\x80{}\x03"


async def test_a_chunked_json_answer_gets_its_length() -> None:
    body = b'{"choices": [ ]}'
    script = raw(
        head(200, "content-type: application/json", "transfer-encoding: chunked"),
        b"6\r\n" + body[:6] + b"\r\n",
        b"%x\r\n" % len(body[6:]) + body[6:] + b"\r\n0\r\n\r\n",
        then="keep",
    )
    async with FaultyEngine(script) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY)
        assert (answer.content, answer.headers["content-length"]) == (body, str(len(body)))


async def test_paths_and_queries_go_on_encoded_as_they_came() -> None:
    seen = await through(path="/v1/embeddings?a=%20b&c=%C3%A9")
    assert seen.target == "/v1/embeddings?a=%20b&c=%C3%A9"
