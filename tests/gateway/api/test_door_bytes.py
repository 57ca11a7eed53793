"""What the door takes out of requests and answers, in every form they come in."""

from __future__ import annotations

import gzip

import pytest

from gateway.api.door import Door
from gateway.api.serve import ServeOptions
from tests.faults import FaultyEngine, answers, head, raw, streams
from tests.gateway.api.crossing import BODY, PATH, through
from tests.gateway.api.rig import http, serving

pytestmark = pytest.mark.anyio

STEERING = (
    b'{"model":"m","messages":[],"kv_transfer_params":{"do_remote_prefill":true},"bootstrap_room":7,'
    b'"vllm_xargs":{"kv_cache_report_mode":"full","keep": 1.0},"kv_\\u0074ransfer_params":2,"mine":[1, 2]}'
)


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"])
async def test_what_steers_an_engine_is_taken_out_in_every_api(path: str) -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        await client.post(door.url + path, content=STEERING, headers={"epp-profile": "x"})
        assert engine.seen[0].body == b'{"model":"m","messages":[],"vllm_xargs":{"keep":1.0},"mine":[1, 2]}'
        assert engine.seen[0].header("epp-profile") == []
        assert (await door.records.next()).stripped == (
            "kv_transfer_params",
            "bootstrap_room",
            "vllm_xargs.kv_cache_report_mode",
            "epp-profile",
        )


BAD = b'{"kv_transfer_params":{"a":1}}'
"""What an engine that takes the first of two would obey."""


@pytest.mark.parametrize("path", [PATH, "/v1/embeddings"])
@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        (b'"vllm_xargs":' + BAD, b'"vllm_xargs":{"a": 1.50}', b'"vllm_xargs":{"a":1.50}'),
        (b'"vllm_xargs":' + BAD, b'"vllm_xargs":null', b'"vllm_xargs":null'),
        (b'"vllm\\u005Fxargs":' + BAD, b'"vllm_xargs" : {}', b'"vllm_xargs":{}'),
        (b'"vllm_xargs":' + BAD, b'"v\\u006clm_xargs":{}', b'"vllm_xargs":{}'),
        (b'"vllm_xargs":' + BAD, b'"vllm_xargs":{"x":NaN}', b'"vllm_xargs":{"x":NaN}'),
    ],
)
async def test_of_an_object_that_stands_there_twice_the_judged_one_goes_on(
    path: str, refuse: bool, first: bytes, second: bytes, want: bytes
) -> None:
    sent = b'{"model":"m","messages":[],%s,"mine":[1],%s}' % (first, second)
    seen = await through(sent, path=path, options=ServeOptions(door=Door(refuse=refuse)))
    assert seen.body == b'{"model":"m","messages":[],%s,"mine":[1]}' % want


async def test_one_object_keeps_its_bytes() -> None:
    body = (
        b'{"model":"m", "messages":[{"content":"kv_transfer_params \\u00e9"}], "vllm_xargs" : {"a": 1.50} }'
    )
    assert (await through(body)).body == body


async def test_json_under_another_name_does_not_slip_by() -> None:
    seen = await through(STEERING, {"content-type": "text/plain"}, "/v1/embeddings")
    assert b"transfer" not in seen.body


async def test_packed_json_does_not_slip_by() -> None:
    assert b"transfer" not in (await through(gzip.compress(STEERING), {"content-encoding": "gzip"})).body


FORM = "/v1/audio/transcriptions"
KIND = {"content-type": "multipart/form-data; boundary=b-1"}
SOUND = b"RIFF\x00\xff\r\n\r\n--b\n--b-\r\r\n x--b-1 \r\n"
FILE = b'content-disposition: form-data; name="file"; filename="a; name=kv_transfer_params"'


def form(*parts: tuple[bytes, bytes]) -> bytes:
    """Of heads and contents."""
    return b"".join(b"--b-1\r\n%s\r\n\r\n%s\r\n" % part for part in parts) + b"--b-1--\r\n"


def named(name: bytes, content: bytes) -> tuple[bytes, bytes]:
    return b'Content-Disposition: form-data; name="%s"' % name, content


async def test_what_steers_an_engine_is_taken_out_of_a_form_and_every_other_byte_stays() -> None:
    mine = (FILE + b"\r\nContent-Type: audio/wav", SOUND), named(b"timestamp_granularities[]", b"word")
    sent = form(
        named(b"kv_transfer_params", b'{"do_remote_prefill":true}'),
        named(b"model", b"m"),
        named(b"vllm_xargs", b'{"own": 1.50, "kv_transfer_params":{"a":1},"kv_cache_report_mode":"full"}'),
        mine[0],
        named(b"vllm_xargs[ec_transfer_params]", b"1"),
        named(b"vllm_xargs.bootstrap_room", b"1"),
        (b"content-disposition: form-data; name=bootstrap_port", b"1"),
        mine[1],
        named(b"kv_transfer_params[do_remote_prefill]", b"true"),
    )
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        assert (await client.post(door.url + FORM, content=sent, headers=KIND)).status_code == 200
        want = form(named(b"model", b"m"), named(b"vllm_xargs", b'{"own":1.50}'), *mine)
        assert engine.seen[0].body == want
        assert engine.seen[0].header("content-length") == [str(len(want))]
        assert sorted((await door.records.next()).stripped) == [
            "bootstrap_port", "kv_transfer_params", "kv_transfer_params", "vllm_xargs.bootstrap_room",
            "vllm_xargs.ec_transfer_params", "vllm_xargs.kv_cache_report_mode",
            "vllm_xargs.kv_transfer_params",
        ]  # fmt: skip


@pytest.mark.parametrize("end", [b"", b"\r\nafter it"])
async def test_a_form_that_steers_nothing_goes_on_as_it_came(end: bytes) -> None:
    sent = b"\r\n" + form(
        named(b"model", b"m"),
        named(b"vllm_xargs", b'{"own" : 1.50}'),
        named(b"prompt", b"kv_transfer_params"),
        (FILE, SOUND),
    )
    assert (await through(sent + end, KIND, FORM)).body == sent + end


async def test_an_open_door_reads_no_form() -> None:
    sent = form(named(b"model", b"m"), named(b"kv_transfer_params", b"1")) + b"--b-1"
    assert (await through(sent, KIND, FORM, ServeOptions(door=Door.open()))).body == sent


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (named(b"kv_transfer_params", b"{}"), "kv_transfer_params"),
        (named(b"vllm_xargs", b'{"ec_transfer_params":NaN}'), "vllm_xargs.ec_transfer_params"),
        (named(b"vllm_xargs[kv_transfer_params]", b"1"), "vllm_xargs.kv_transfer_params"),
    ],
)
async def test_a_strict_door_refuses_a_form(part: tuple[bytes, bytes], param: str) -> None:
    options = ServeOptions(door=Door(refuse=True))
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        sent = form(named(b"model", b"m"), part)
        answer = await client.post(door.url + FORM, content=sent, headers=KIND)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert engine.seen == []


ODD = b"Content-Disposition: form-data; "
PLAIN = form(named(b"model", b"m"))


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (form((ODD + b"name*=utf-8''kv%5Ftransfer_params", b"1")), None),
        (form((ODD + b'name*0="kv_transfer"; name*1="_params"', b"1")), None),
        (form((ODD + b'name="a"; name="kv_transfer_params"', b"1")), None),
        (form((ODD + b'name="kv\\_transfer_params"', b"1")), None),
        (form((ODD + b"name=a\r\n" + ODD + b"name=kv_transfer_params", b"1")), None),
        (form((ODD + b"\r\n name=kv_transfer_params", b"1")), None),
        (form((ODD + b"name=a\n" + ODD + b"name=kv_transfer_params", b"1")), None),
        (form((b"Content-Disposition : form-data; name=kv_transfer_params", b"1")), None),
        (form((b"x: y", b"1")), None),
        (form((ODD + b"name=a" + b";" * 32, b"1")), None),
        (form((ODD + b"name=a; filename=" + b"x" * 4096, b"1")), None),
        (form(*(named(b"a", b"") for _ in range(257))), None),
        (PLAIN.replace(b"\r\n", b"\n"), None),
        (PLAIN.removesuffix(b"--\r\n"), None),
        (b"before it\r\n" + PLAIN, None),
        (PLAIN, "multipart/form-data"),
        (PLAIN, "multipart/form-data; boundary=b-1; boundary=b-2"),
        (PLAIN, "multipart/form-data; boundary=b-1; charset=utf-7"),
    ],
)
async def test_a_form_that_can_be_read_in_two_ways_is_refused(sent: bytes, kind: str | None) -> None:
    headers = KIND if kind is None else {"content-type": kind}
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + FORM, content=sent, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert engine.seen == []


async def test_a_strict_door_refuses_and_names_the_field() -> None:
    options = ServeOptions(door=Door(refuse=True))
    async with (
        FaultyEngine(answers()) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        answer = await client.post(door.url + PATH, content=STEERING)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv_transfer_params")
        answer = await client.post(door.url + PATH, content=BODY, headers={"x-data-parallel-rank": "1"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-data-parallel-rank")
        assert engine.seen == []


async def test_an_open_door_lets_all_through() -> None:
    once = STEERING.replace(b'"kv_\\u0074ransfer_params":2,', b"")
    assert len(once) < len(STEERING)
    seen = await through(once, {"x-smg-a": "1"}, options=ServeOptions(door=Door.open()))
    assert (seen.body, seen.header("x-smg-a")) == (once, ["1"])


async def test_transfer_fields_leave_answers() -> None:
    told = b'{"choices": [],"kv_transfer_params":{"remote_host":"10.0.0.7"},"usage":null}'
    silent = b'{"choices": [],"kv_transfer_params":null,"ec_transfer_params":null}'
    event = b'data: {"choices":[],"kv_transfer_params":{"remote_host":"10.0.0.7"}}\n\n'
    scripts = answers(told), answers(silent), streams([event, b"data: [DONE]\n\n"])
    async with FaultyEngine(*scripts) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + PATH, content=BODY)
        assert answer.content == b'{"choices":[],"usage":null}'
        assert answer.headers["content-length"] == "27"
        assert (await client.post(door.url + PATH, content=BODY)).content == silent
        answer = await client.post(door.url + PATH, content=BODY.replace(b"{", b'{"stream":true,', 1))
        assert answer.content == b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    "path",
    ["/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling", "/classify", FORM],
)
async def test_transfer_fields_leave_the_answers_of_endpoints_that_go_by_load(path: str) -> None:
    told = b'{"data": [{"x": 1.50,"ec_transfer_params":[1]}],"kv_transfer_params":{"remote_host":"10.0.0.7"}}'
    silent = b'{"data": [ ],"kv_transfer_params":null}'
    chunked = raw(
        head(200, "content-type: application/json", "transfer-encoding: chunked"),
        b"%x\r\n" % len(told) + told[:50],
        told[50:] + b"\r\n0\r\n\r\n",
        then="keep",
    )
    scripts = answers(told), chunked, answers(silent)
    async with FaultyEngine(*scripts) as engine, serving(engine.url) as door, http() as client:
        for want in (b'{"data":[{"x":1.50}]}', b'{"data":[{"x":1.50}]}', silent):
            answer = await client.post(door.url + path, content=b'{"model":"m"}')
            assert (answer.content, answer.headers["content-length"]) == (want, str(len(want)))
        # a client that asks for a packed answer must not get around it
        assert engine.seen[0].header("accept-encoding") == ["identity"]


async def test_an_answer_beyond_the_bound_passes_as_it_comes() -> None:
    body = b'{"data":[%s]}' % b",".join([b"0.125"] * 1000)
    options = ServeOptions(max_answer=1000)
    async with (
        FaultyEngine(answers(body)) as engine,
        serving(engine.url, options=options) as door,
        http() as client,
    ):
        answer = await client.post(door.url + "/v1/embeddings", content=b'{"model":"m"}')
        assert (answer.status_code, answer.content) == (200, body)


PAIRS = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


@pytest.mark.parametrize("path", [FORM, "/v1/audio/speech", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("sent", "want", "stripped"),
    [
        (b"model=m&kv_transfer_params=1", b"model=m", ("kv_transfer_params",)),
        (b"kv_transfer_params=1&model=m&a=%20b", b"model=m&a=%20b", ("kv_transfer_params",)),
        (b"a=1&kv%5Ftransfer_params&b=2", b"a=1&b=2", ("kv_transfer_params",)),
        (b"a=1;bootstrap_room=2;b=3", b"a=1;b=3", ("bootstrap_room",)),
        (b"kv_transfer_params[a][b]=1&a=1", b"a=1", ("kv_transfer_params",)),
        (b"vllm_xargs.kv_transfer_params=1&a=1", b"a=1", ("vllm_xargs.kv_transfer_params",)),
        (
            b"vllm_xargs=%7B%22own%22%3A1.50%2C%22bootstrap_room%22%3A1%7D&a=1",
            b"vllm_xargs=%7B%22own%22%3A1.50%7D&a=1",
            ("vllm_xargs.bootstrap_room",),
        ),
        (b"a=kv_transfer_params%3D1&&b;c=%ff+%zz", b"a=kv_transfer_params%3D1&&b;c=%ff+%zz", ()),
    ],
)
async def test_a_form_like_a_query_is_judged(
    path: str, sent: bytes, want: bytes, stripped: tuple[str, ...]
) -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        door.router.models[""] = "m"
        assert (await client.post(door.url + path, content=sent, headers=PAIRS)).status_code == 200
        assert engine.seen[0].body == want
        assert (await door.records.next()).stripped == stripped


@pytest.mark.parametrize(
    ("sent", "headers"),
    [
        (b'{"a":"&kv_transfer_params=1&"}', [*PAIRS.items()]),  # JSON and a form at once
        (b'{"a":"&cache_salt=1&"}', [*PAIRS.items()]),
        (b"a=1&" * 1001, [*PAIRS.items()]),
        (b"a=1", [*PAIRS.items(), ("content-type", "text/plain")]),
    ],
)
async def test_a_form_like_a_query_with_two_readings_is_refused(
    sent: bytes, headers: list[tuple[str, str]]
) -> None:
    async with FaultyEngine(answers()) as engine, serving(engine.url) as door, http() as client:
        answer = await client.post(door.url + FORM, content=sent, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert engine.seen == []
