"""Names, pools and the door through the whole gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.door import ANSWER_FIELDS, BODY_FIELDS, HEADERS, Door
from gateway.errors import ConfigError
from gateway.parts import door
from gateway.settings import Settings
from tests.faults import FaultyEngine, Turn, answers, hangs
from tests.gateway.api.rig import http
from tests.gateway.api.whole import Whole, whole

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
GOOD = answers(b'{"choices":[]}')


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(url: str, model: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
    async with http() as client:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        return await client.post(url + PATH, json=body, headers=headers)


# -- models -------------------------------------------------------------------------------------------------


async def test_scaled_to_zero_is_503_and_unknown_is_404_the_same_from_every_replica() -> None:
    """One replica has seen a worker of the model come and go, the other none: they must not differ."""
    named: dict[str, Any] = {"models": ("away",), "aliases": {"nick": "away"}, "tokenizers": {}}
    async with (
        FaultyEngine(GOOD, model="away") as engine,
        whole(engine.url, **named) as seen,
        whole(**named) as fresh,
    ):
        assert (await ask(seen.url, "away")).status_code == 200
        seen.app.registry.remove(seen.app.registry.workers()[0].id)
        for model in ("away", "nick"):
            told = [await ask(gateway.url, model) for gateway in (seen, fresh)]
            assert [answer.status_code for answer in told] == [503, 503]
            assert told[0].json() == told[1].json()
            assert told[0].headers["retry-after"] == "1"
        told = [await ask(gateway.url, "never") for gateway in (seen, fresh)]
        assert [answer.status_code for answer in told] == [404, 404]
        assert told[0].json() == told[1].json()
        assert "there are: away, nick" in told[0].text


async def test_several_models_behind_one_door_and_an_alias() -> None:
    async with (
        FaultyEngine(GOOD, model="a") as one,
        FaultyEngine(GOOD, model="b") as two,
        whole(one.url, two.url, aliases={"nick": "b"}, tokenizers={"a": "bytes", "b": "bytes"}) as gateway,
    ):
        for model, engine in (("a", one), ("b", two), ("nick", two)):
            answer = await ask(gateway.url, model)
            assert (answer.status_code, answer.headers["x-gateway-worker"]) == (200, engine.url)
            assert engine.seen[-1].json()["model"] == ("b" if model == "nick" else model)
        async with http() as client:
            listed = (await client.get(gateway.url + "/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["a", "b", "nick"]


async def test_an_adapter_comes_and_goes_while_its_model_is_served() -> None:
    """Loaded, it is served; unloaded, it is unknown again; with its worker gone, it may come back."""
    models = [{"id": "m"}]

    async def changing(turn: Turn) -> None:
        body = {"/health": b"", "/v1/models": json.dumps({"data": models}).encode()}.get(turn.seen.target)
        await (answers(b"{}", 404) if body is None and turn.seen.method == "GET" else answers(body or b"{}"))(
            turn
        )

    async def until(gateway: Whole, wanted: int) -> None:
        async with asyncio.timeout(30):
            while (answer := await ask(gateway.url, "french")).status_code != wanted:
                assert answer.status_code in (200, 404)
                await asyncio.sleep(0.05)

    async with (
        FaultyEngine(changing) as engine,
        FaultyEngine(GOOD, model="m") as other,
        whole(engine.url, other.url, health_interval=0.02) as gateway,
    ):
        assert (await ask(gateway.url, "french")).status_code == 404
        models.append({"id": "french", "parent": "m"})
        await until(gateway, 200)
        asked = [seen for seen in engine.seen if seen.method == "POST"]  # probes come in between
        assert asked[-1].json()["model"] == "french"
        french = models.pop()
        await until(gateway, 404)
        models.append(french)
        await until(gateway, 200)
        gateway.app.registry.remove(gateway.app.registry.workers()[0].id)
        gone = await ask(gateway.url, "french")
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")
        assert (await ask(gateway.url, "m")).status_code == 200


# -- the door -----------------------------------------------------------------------------------------------


def test_the_standard_lists_name_what_is_known_to_be_dangerous() -> None:
    assert set(BODY_FIELDS) == {
        "kv_transfer_params", "ec_transfer_params", "kv_hints", "disaggregated_params", "bootstrap_host",
        "bootstrap_port", "bootstrap_room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
        "cache_hit_threshold", "vllm_xargs.kv_cache_report_mode",
    }  # fmt: skip
    assert set(HEADERS) == {
        "x-data-parallel-rank", "x-prefiller-host-port", "x-encoder-hosts-ports",
        "x-kv-cache-source-host-port", "x-data-parallel-host-port", "x-gateway-destination-endpoint*",
        "epp-profile", "x-smg-*",
    }  # fmt: skip
    assert "kv_transfer_params" in ANSWER_FIELDS


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
         "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/rerank", "/score", "/v1/audio/speech",
         "/custom")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_every_listed_field_and_header_is_taken_out_of_every_api_and_counted(path: str) -> None:
    fields: dict[str, Any] = {name: 1 for name in BODY_FIELDS if "." not in name}
    body = {"model": "m", **fields, "vllm_xargs": {"kv_cache_report_mode": "full", "own": 1}, "mine": [1.5]}
    headers = {name.replace("*", "x"): "1" for name in HEADERS}
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, passthrough_paths=("/custom",)) as gateway,
        http() as client,
    ):
        assert (await client.post(gateway.url + path, json=body, headers=headers)).status_code == 200
        (seen,) = engine.seen
        assert seen.json() == {"model": "m", "vllm_xargs": {"own": 1}, "mine": [1.5]}
        assert [name for name in headers if seen.header(name)] == []
        await gateway.records(1)
        counted = gateway.app.metrics.registry.get_sample_value
        for name in (*BODY_FIELDS, *HEADERS):
            assert counted("gateway_door_stripped_total", {"name": name}) == 1, name
        # in strict mode each of them alone is refused, by name
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, passthrough_paths=("/custom",), door="refuse") as gateway,
        http() as client,
    ):
        for name in fields:
            answer = await client.post(gateway.url + path, json={"model": "m", name: 1})
            assert answer.status_code == 400
            assert name in answer.text
        for name in headers:
            answer = await client.post(gateway.url + path, json={"model": "m"}, headers={name: "1"})
            assert answer.status_code == 400
        assert engine.seen == []


async def test_headers_with_underscores_are_judged_by_what_servers_take_them_for() -> None:
    """CGI and WSGI read ``_`` as ``-`` (RFC 3875, section 4.1.18)."""
    bad = ("transfer_encoding", "Content_Length", "keep_alive", "x_request_id", "proxy_authorization",
           "x_data_parallel_rank", "X-Data_Parallel_Rank", "epp_profile", "x_smg_a", "x_smg-b")  # fmt: skip
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url) as gateway,
        http() as client,
    ):
        headers = {**dict.fromkeys(bad, "1"), "x_mine": "2"}
        assert (
            await client.post(gateway.url + PATH, json={"model": "m"}, headers=headers)
        ).status_code == 200
        (seen,) = engine.seen
        assert [name for name in bad if seen.header(name.lower())] == []
        assert seen.header("x_mine") == ["2"]
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, door="refuse") as gateway,
        http() as client,
    ):
        for name in bad[5:]:
            answer = await client.post(gateway.url + PATH, json={"model": "m"}, headers={name: "1"})
            assert answer.status_code == 400, name
        assert engine.seen == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/custom"])
async def test_what_is_listed_counts_inside_vllm_xargs_too(path: str) -> None:
    """vLLM makes the object its `extra_args`, and reads transfer parameters from there."""
    fields = [name for name in BODY_FIELDS if "." not in name]
    body = b'{"model":"m","vllm_xargs":{"own":1.50,%s},"mine":[1, 2]}'
    steering = b",".join(b'"%s":{"a":1}' % name.encode() for name in fields)
    custom: dict[str, Any] = {"passthrough_paths": ("/custom",)}
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, **custom) as gateway,
        http() as client,
    ):
        assert (await client.post(gateway.url + path, content=body % steering)).status_code == 200
        assert engine.seen[0].body == b'{"model":"m","vllm_xargs":{"own":1.50},"mine":[1, 2]}'
        await gateway.records(1)
        for name in fields:
            labels = {"name": f"vllm_xargs.{name}"}
            assert gateway.app.metrics.registry.get_sample_value("gateway_door_stripped_total", labels) == 1
    strict: dict[str, Any] = {**custom, "door": "refuse"}
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, **strict) as gateway,
        http() as client,
    ):
        for name in fields:
            answer = await client.post(
                gateway.url + path, json={"model": "m", "vllm_xargs": {name: {"a": 1}}}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"vllm_xargs.{name}")
        assert engine.seen == []


async def test_a_trusted_key_may_say_what_it_is_allowed_to(tmp_path: Path) -> None:
    secrets = {name: f"sk-{name}-0123456789abcdef0123456789" for name in ("trusted", "other")}
    entries: list[dict[str, Any]] = [
        {"id": name, "hash": "sha256:" + hashlib.sha256(secret.encode()).hexdigest()}
        for name, secret in secrets.items()
    ]
    entries[0]["allow"] = ["kv_transfer_params", "x-data-parallel-rank"]
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps(entries))
    steering: dict[str, Any] = {
        "kv_transfer_params": {"a": 1},
        "bootstrap_room": 7,
        "vllm_xargs": {"kv_transfer_params": 2, "bootstrap_room": 3},
    }
    async with FaultyEngine(GOOD, model="m") as engine, whole(engine.url, api_keys_file=keys) as gateway:
        for name, secret in secrets.items():
            headers = {"authorization": f"Bearer {secret}", "x-data-parallel-rank": "1", "epp-profile": "x"}
            assert (await ask(gateway.url, "m", headers, **steering)).status_code == 200, name
        trusted, other = engine.seen
        assert trusted.json()["kv_transfer_params"] == {"a": 1}
        assert trusted.json()["vllm_xargs"] == {"kv_transfer_params": 2}
        assert trusted.header("x-data-parallel-rank") == ["1"]
        assert "bootstrap_room" not in trusted.json()
        assert trusted.header("epp-profile") == []
        assert "kv_transfer_params" not in other.json()
        assert other.json()["vllm_xargs"] == {}
        assert other.header("x-data-parallel-rank") == []


async def test_the_lists_are_configuration() -> None:
    lists: dict[str, Any] = {
        "door_fields": ("mine", "deep.er.still"),
        "door_headers": ("x-own-*",),
        "door_answer_fields": ("told",),
    }  # fmt: skip
    script = answers(b'{"told":1,"kv_transfer_params":{"a":1},"choices":[]}')
    async with FaultyEngine(script, model="m") as engine, whole(engine.url, **lists) as gateway:
        sent = {"mine": 1, "deep": {"er": {"still": 1, "x": 2}}, "kv_transfer_params": 3}
        answer = await ask(gateway.url, "m", {"x-own-thing": "1", "x-smg-a": "1"}, **sent)
        assert answer.json() == {"kv_transfer_params": {"a": 1}, "choices": []}
        got = engine.seen[0].json()
        assert (got["deep"], got["kv_transfer_params"], "mine" in got) == ({"er": {"x": 2}}, 3, False)
        assert engine.seen[0].header("x-own-thing") == []
        assert engine.seen[0].header("x-smg-a") == ["1"]
    for name in ("*", "x-*-y", ""):
        with pytest.raises(ConfigError, match="door_headers"):
            door(Settings(door_headers=(name,)))


# -- images, sounds, tools ----------------------------------------------------------------------------------

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
LONG = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.mark.parametrize("source", ["bytes", "engine"])
@pytest.mark.parametrize(
    "media", [IMAGE, SOUND, {"type": "hologram", "hologram": 1}, {"type": IMAGE}, {"type": ["text"]}, 7, None]
)
async def test_media_are_routed_by_the_text_before_them_and_never_crashed_on(media: Any, source: str) -> None:
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": [{"type": "text", "text": "what is it?"}, media]},
    ]
    async with (
        FaultyEngine(GOOD, model="m") as engine,
        whole(engine.url, tokenizers={"m": source}) as gateway,
        http() as client,
    ):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        for _ in range(2):
            answer = await client.post(gateway.url + PATH, content=body)
            assert answer.status_code == 200
            assert engine.seen[-1].body == body


async def test_no_worker_yet_is_503_and_a_hanging_health_check_holds_nobody() -> None:
    async with (
        FaultyEngine(hangs()) as mute,
        FaultyEngine(GOOD, model="m") as fine,
        whole(mute.url, fine.url, ready=1) as gateway,
    ):
        assert (await ask(gateway.url, "m")).status_code == 200


def test_headers_are_counted_by_the_lists_own_names() -> None:
    """A client that varies what follows a prefix must not make a series of metrics with each."""
    door = Door()
    given = [(b"x-smg-1", b"a"), (b"x-smg-2", b"b"), (b"x_smg_3", b"c"), (b"epp-profile", b"d")]
    found = door.headers_in(given)
    assert found == [b"x-smg-1", b"x-smg-2", b"x_smg_3", b"epp-profile"]
    assert [door.listed_as(name) for name in found] == ["x-smg-*", "x-smg-*", "x-smg-*", "epp-profile"]
