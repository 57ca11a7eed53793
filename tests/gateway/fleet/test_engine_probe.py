"""What is learned from an engine, over real HTTP; the answers are real vLLM engines' own."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.errors import ConfigError, UpstreamConnectError, UpstreamProtocolError, UpstreamTimeout
from gateway.fleet.engine_metrics import cache_config, speculates
from gateway.fleet.probe import EngineProbe, reachable
from gateway.fleet.worker import EngineInfo, WorkerSpec
from gateway.upstream.client import UpstreamClient
from gateway.upstream.visitor import Visitor
from tests.faults import FaultyEngine, Script, Turn, answers, hangs, raw

pytestmark = pytest.mark.anyio
Recorded = dict[str, dict[str, tuple[int, bytes]]]


@pytest.fixture
async def probe() -> AsyncIterator[EngineProbe]:
    client = UpstreamClient()
    yield EngineProbe(Visitor(client), timeout=5.0)
    await client.close()


async def test_vllm_032_says_all_about_itself(probe: EngineProbe, engine: Any, recorded: Recorded) -> None:
    server = engine(recorded["v032"])
    await probe.alive(WorkerSpec(server.url))
    learned = await probe.learn(WorkerSpec(server.url))
    info = learned.info
    assert (info.model, info.adapters, info.max_model_len) == ("tiny-llama", (), 512)
    assert (info.model_path, info.block_size, info.capacity_blocks) == ("/models/tiny", 16, 48)
    assert info.version == "0.32.0"
    assert info.model_entries[0]["owned_by"] == "vllm"
    assert learned.events == "tcp://127.0.0.1:5557"
    assert learned.replay == "tcp://127.0.0.1:5558"
    assert learned.topic == "kv-events"


async def test_vllm_028_keeps_its_event_source_to_itself(
    probe: EngineProbe, engine: Any, recorded: Recorded
) -> None:
    learned = await probe.learn(WorkerSpec(engine(recorded["v028"]).url))
    assert (learned.info.version, learned.info.capacity_blocks) == ("0.28.0", 48)
    assert (learned.events, learned.replay, learned.topic) == (None, None, None)


async def test_the_operators_word_stands(probe: EngineProbe, engine: Any, recorded: Recorded) -> None:
    spec = WorkerSpec(
        engine(recorded["v032"]).url, model="mine", block_size=32, capacity_blocks=7, events="tcp://e:1"
    )
    learned = await probe.learn(spec)
    assert (learned.info.model, learned.info.block_size, learned.info.capacity_blocks) == ("mine", 32, 7)
    assert (learned.events, learned.replay) == (None, None)


def models(*entries: dict[str, object]) -> dict[str, tuple[int, bytes]]:
    return {"/v1/models": (200, json.dumps({"data": entries}).encode())}


async def test_adapters_and_further_names(probe: EngineProbe, engine: Any) -> None:
    server = engine(
        models(
            {"id": "base", "root": "/m", "parent": None},
            {"id": "also-base", "root": "/m", "parent": None},
            {"id": "french", "root": "/l", "parent": "base"},
        )
    )
    info = (await probe.learn(WorkerSpec(server.url))).info
    assert (info.model, info.served_names, info.adapters) == ("base", ("also-base",), ("french",))
    assert (info.block_size, info.capacity_blocks, info.version) == (16, 0, "")
    assert not info.adapters_by_colon


async def test_adapters_of_sglang(probe: EngineProbe, engine: Any) -> None:
    """As 0.5.23 lists them."""
    server = engine(
        models(
            {"id": "base", "owned_by": "sglang", "root": "base", "parent": None, "max_model_len": 4096},
            {"id": "french", "owned_by": "sglang", "root": "/l", "parent": "base", "max_model_len": None},
        )
    )
    info = (await probe.learn(WorkerSpec(server.url))).info
    assert (info.model, info.adapters, info.adapters_by_colon) == ("base", ("french",), True)


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "/v1/models answers 404"),
        ({"/v1/models": (500, b"")}, "/v1/models answers 500"),
        ({"/v1/models": (200, b"<html>")}, "names no model"),
        ({"/v1/models": (200, b'{"data": [{"id": 7}]}')}, "names no model"),
        ({"/v1/models": (200, b'\xff{"data"')}, "names no model"),
    ],
)
async def test_an_engine_that_does_not_name_a_model(
    probe: EngineProbe, engine: Any, answers: dict[str, tuple[int, bytes]], says: str
) -> None:
    with pytest.raises(UpstreamProtocolError) as error:
        await probe.learn(WorkerSpec(engine(answers).url))
    assert says in error.value.message


MODELS = answers(json.dumps({"data": [{"id": "m"}]}).encode())
METRICS = answers(
    b'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="200"} 1.0\n',
    content_type="text/plain",
)
SOURCES = answers(b'{"0": {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}}')
OPTIONAL = ("/metrics", "/version", "/kv_event_sources")
BAD: dict[str, Script] = {
    "hangs up": raw(then="close"),
    "resets": raw(then="reset"),
    "is silent": hangs(),
    "is no HTTP": raw(b"SSH-2.0\r\n", then="close"),
    "breaks off": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", then="close"),
    "garbage": answers(b'\xff\xfe[{"0":'),
    "odd JSON": answers(b'{"0": {"enable_kv_cache_events": 1, "endpoint": "tcp://*:99999", "topic": 7}}'),
    "500": answers(b"", 500),
}


@pytest.mark.parametrize("path", OPTIONAL)
@pytest.mark.parametrize("bad", BAD)
async def test_a_question_that_need_not_be_answered_may_fail(path: str, bad: str) -> None:
    """What it says of everything else counts, and no answer at all is worth another question."""
    good = {
        "/v1/models": MODELS, "/metrics": METRICS, "/version": answers(b'{"version": "0.32.0"}'),
        "/kv_event_sources": SOURCES,
    }  # fmt: skip
    client = UpstreamClient()
    probe = EngineProbe(Visitor(client), timeout=0.2)
    async with FaultyEngine(by_path({**good, path: BAD[bad]})) as engine:
        learned = await probe.learn(WorkerSpec(engine.url))
        info = learned.info
        assert info.model == "m"
        assert (info.block_size, info.capacity_blocks) == ((16, 0) if path == "/metrics" else (32, 200))
        assert info.version == ("" if path == "/version" else "0.32.0")
        assert learned.events == (None if path == "/kv_event_sources" else "tcp://127.0.0.1:5557")
        silent = bad not in ("garbage", "odd JSON", "500")
        assert learned.unheard is silent
        known = EngineInfo("m", block_size=32, capacity_blocks=100, version="0.31")
        again = (await probe.learn(WorkerSpec(engine.url), known)).info
        if silent and path == "/metrics":
            assert (again.block_size, again.capacity_blocks) == (32, 100)
        assert again.version == ("0.32.0" if path != "/version" else "0.31" if silent else "")
    await client.close()


def by_path(scripts: dict[str, Script]) -> Script:
    async def script(turn: Turn) -> None:
        await scripts[turn.seen.target](turn)

    return script


async def test_nobody_there(probe: EngineProbe, free_port: Callable[[], int]) -> None:
    with pytest.raises(UpstreamConnectError):
        await probe.alive(WorkerSpec(f"http://127.0.0.1:{free_port()}"))


async def test_an_engine_that_is_not_well(probe: EngineProbe, engine: Any) -> None:
    with pytest.raises(UpstreamProtocolError, match="/health answers 503"):
        await probe.alive(WorkerSpec(engine({"/health": (503, b"")}).url))


async def test_an_engine_that_hangs(free_port: Callable[[], int]) -> None:
    import socket

    with socket.socket() as listener:  # accepts in the kernel's backlog and never answers
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = UpstreamClient()
        spec = WorkerSpec(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(UpstreamTimeout, match=r"/health timed out after 0\.05 s"):
            await EngineProbe(Visitor(client), timeout=0.05).alive(spec)
        await client.close()


async def test_cache_config_of_each_engine() -> None:
    text = (
        "garbage {{{\n"
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
        'vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="200"} 1.0\n'
        'vllm:cache_config_info{block_size="un\n'
    )
    assert cache_config(text, 0) == {"block_size": 16, "num_blocks": 100}
    assert cache_config(text, 1) == {"block_size": 32, "num_blocks": 200}
    sglang = 'sglang:cache_config_info{page_size="64",num_pages="512"} 1.0\n'
    assert cache_config(sglang) == {"block_size": 64, "num_blocks": 512}
    assert cache_config('vllm:cache_config_info{block_size="None",num_gpu_blocks="0"} 1.0\n') == {}


async def test_who_drafts_tokens() -> None:
    drafts = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0\n'
    assert speculates("# HELP vllm:spec_decode_num_drafts_total …\n" + drafts) == "vllm"
    assert speculates('vllm:num_requests_running{engine="0"} 0.0\n') == ""
    assert speculates('sglang:spec_num_draft_tokens{dp_rank="0"} 0.0\n') == ""
    assert speculates('sglang:spec_num_draft_tokens{dp_rank="0"} 4.0\n') == "sglang"


async def test_bound_endpoints_become_reachable_ones() -> None:
    assert reachable("tcp://*:5557", "10.0.0.7") == "tcp://10.0.0.7:5557"
    assert reachable("tcp://0.0.0.0:5557", "fd00::7") == "tcp://[fd00::7]:5557"
    assert reachable("tcp://[::]:5557", "engine-0") == "tcp://engine-0:5557"
    # an engine can't send the gateway elsewhere: a metadata service, another tenant's host
    assert reachable("tcp://10.1.1.1:5557", "engine-0") == "tcp://engine-0:5557"
    assert reachable("tcp://169.254.169.254:80", "10.0.0.7") == "tcp://10.0.0.7:80"
    assert reachable("inproc://kv", "engine-0") is None
    for port in ("0", "65536", "99999999999", "\u00b2", "-1", ""):
        assert reachable(f"tcp://*:{port}", "engine-0") is None
    assert reachable(None, "engine-0") is None


@pytest.mark.parametrize("body", [b"", b"OK", b'{"status": "ok"}', b'{"server": "vllm"}', b"[1]", b"\xff"])
async def test_an_engine_may_say_of_its_health_what_it_likes(
    probe: EngineProbe, engine: Any, body: bytes
) -> None:
    await probe.alive(WorkerSpec(engine({"/health": (200, body)}).url))


async def test_a_gateway_is_as_well_as_its_engines_and_only_where_it_may_be(
    probe: EngineProbe, engine: Any
) -> None:
    server = engine({"/health": (200, b'{"status": "ok", "server": "prefix-gateway"}')})
    spec = WorkerSpec(server.url)
    with pytest.raises(ConfigError, match="may be a worker with --worker-gateways"):
        await probe.alive(spec)
    client = UpstreamClient()
    chained = EngineProbe(Visitor(client), timeout=5.0, gateways=True)
    server.answers["/ready"] = (503, b'{"status": "not ready", "reason": "no worker is ready"}')
    with pytest.raises(UpstreamProtocolError, match="not ready: no worker is ready"):
        await chained.alive(spec)
    server.answers["/ready"] = (200, b'{"status": "ready"}')
    await chained.alive(spec)
    await client.close()
