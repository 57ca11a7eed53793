"""Command lines of engines, and what is added to them."""

from __future__ import annotations

import json

import pytest

from gateway.agent.command import complete, events_port, of_ranks
from gateway.agent.flags import Flags
from gateway.agent.run import seen_from_outside
from gateway.errors import ConfigError
from gateway.fleet.worker import WorkerSpec

EVENTS = {
    "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:18000", "topic": "kv-events",
    "replay_endpoint": "tcp://*:18001",
}  # fmt: skip


def test_vllm_gets_what_is_missing() -> None:
    done = complete(["vllm", "serve", "Qwen/Qwen2.5-7B-Instruct"], "10.0.0.7")
    assert done.argv[:3] == ("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct")
    assert done.argv[3:6] == (
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--kv-events-config",
    )
    assert json.loads(done.argv[6]) == EVENTS
    assert len(done.argv) == 7
    assert len(done.added) == 3
    assert done.workers == (
        WorkerSpec("http://10.0.0.7:8000", "tcp://10.0.0.7:18000", "tcp://10.0.0.7:18001", "kv-events"),
    )


def test_what_the_operator_said_stands() -> None:
    config = {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:6000",
        "replay_endpoint": "tcp://*:7000", "topic": "mine",
    }  # fmt: skip
    argv = ["/opt/v/bin/vllm", "serve", "m", "--port=9000", "--enable_prefix_caching",
            "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(config)]  # fmt: skip
    done = complete(argv, "h")
    assert done.argv == tuple(argv)
    assert done.added == ()
    assert done.workers == (WorkerSpec("http://h:9000", "tcp://h:6000", "tcp://h:7000", "mine"),)


@pytest.mark.parametrize(
    "given",
    [
        ["--kv-events-config", '{"endpoint": "tcp://*:6000"}'],
        ['--kv-events-config={"endpoint": "tcp://*:6000"}'],
        ["--kv_events_config", '{"endpoint": "tcp://*:6000"}'],
        ["--kv-events-config.endpoint", "tcp://*:6000"],
        ["--kv-events-config.endpoint=tcp://*:6000"],
    ],
)
def test_a_half_given_events_config_is_filled_up(given: list[str]) -> None:
    done = complete(["vllm", "serve", "m", *given], "h")
    config = json.loads(done.argv[-1])
    assert config == {**EVENTS, "endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:6001"}
    assert [word for word in done.argv if word.replace("_", "-").startswith("--kv-events-config")] == [
        "--kv-events-config"
    ]
    assert done.workers[0].events == "tcp://h:6000"


def test_each_rank_is_a_worker_of_its_own() -> None:
    done = complete(["vllm", "serve", "m", "--data-parallel-size", "2"], "h")
    # vLLM adds the rank to both ports
    assert [(w.id, w.events, w.replay, w.dp_rank) for w in done.workers] == [
        ("http://h:8000#dp0", "tcp://h:18000", "tcp://h:18002", 0),
        ("http://h:8000#dp1", "tcp://h:18001", "tcp://h:18003", 1),
    ]


def test_ranks_in_short_and_of_an_engine_that_is_named() -> None:
    engine = WorkerSpec("http://h:9", events="tcp://h:5000", replay="tcp://h:5002", max_requests=8)
    done = complete(["vllm", "serve", "m", "-dp", "2"], "h", engine)
    assert [(w.id, w.events, w.replay, w.max_requests) for w in done.workers] == [
        ("http://h:9#dp0", "tcp://h:5000", "tcp://h:5002", 8),
        ("http://h:9#dp1", "tcp://h:5001", "tcp://h:5003", 8),
    ]
    assert of_ranks(WorkerSpec("http://h:9"), 2) == (
        WorkerSpec("http://h:9", dp_rank=0), WorkerSpec("http://h:9", dp_rank=1),
    )  # fmt: skip


@pytest.mark.parametrize(("replay", "apart"), [(5558, False), (5560, False), (5561, True), (5553, True)])
def test_ranks_whose_ports_would_meet_are_refused(replay: int, apart: bool) -> None:
    config = {"endpoint": "tcp://*:5557", "replay_endpoint": f"tcp://*:{replay}"}
    argv = ["vllm", "serve", "m", "--data-parallel-size=4", f"--kv-events-config={json.dumps(config)}"]
    if apart:
        assert [w.replay for w in complete(argv, "h").workers] == [f"tcp://h:{replay + r}" for r in range(4)]
    else:
        with pytest.raises(ConfigError, match=f"5557 and {replay} are not as far apart"):
            complete(argv, "h")


def test_the_reference_engine() -> None:
    done = complete(["python", "-m", "workers", "serve", "--model", "tiny", "--port", "8105"], "127.0.0.1")
    assert done.added == ("--kv-events-port 18210",)
    assert done.workers == (
        WorkerSpec(
            "http://127.0.0.1:8105", "tcp://127.0.0.1:18210", "tcp://127.0.0.1:18211", "kv-events"
        ),
    )  # fmt: skip


def test_sglang() -> None:
    done = complete(["python3", "-m", "sglang.launch_server", "--model-path", "m"], "h")
    assert done.argv[5:7] == ("--enable-cache-report", "--enable-metrics")
    assert json.loads(done.argv[8]) == {
        "publisher": "zmq", "endpoint": "tcp://*:62000", "topic": "kv-events",
        "replay_endpoint": "tcp://*:62001",
    }  # fmt: skip
    assert done.workers[0].url == "http://h:30000"


def test_other_commands_run_as_they_are_where_the_engine_is_named() -> None:
    engine = WorkerSpec("http://h:1234")
    done = complete(["./run-engine.sh", "--fast"], "h", engine)
    assert (done.argv, done.workers) == (("./run-engine.sh", "--fast"), (engine,))
    with pytest.raises(ConfigError, match="--engine URL"):
        complete(["./run-engine.sh"], "h")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no-enable-prefix-caching"], "prefix cache"),
        (["--port", "abc"], "whole number"),
        (["--port"], "missing"),
        (["--kv-events-config", "nonsense"], "JSON object"),
        (["--kv-events-config", "[1]"], "JSON object"),
        (["--kv-events-config", '{"publisher": "null"}'], "events are off"),
        (["--kv-events-config", '{"enable_kv_cache_events": false}'], "events are off"),
        (["--kv-events-config", '{"endpoint": "inproc://x"}'], "no port"),
    ],
)
def test_what_cannot_work_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete(["vllm", "serve", "m", *flags], "h")


@pytest.mark.parametrize("flag", ["--no-prefix-caching", "--no_prefix_caching"])
def test_the_reference_engine_without_its_cache_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match="--no-prefix-caching: without its prefix cache"):
        complete(["python", "-m", "workers", "serve", flag], "h")


def test_neighbours_on_one_machine_never_share_a_port() -> None:
    ports = [events_port(http) + end for http in range(8000, 8064) for end in (0, 1)]
    assert len(set(ports)) == 128
    assert all(1024 <= events_port(http) < 65_535 for http in range(1024, 65_536))


def test_the_last_of_several_values_counts() -> None:
    assert Flags(["x", "--port", "1", "--port=2"]).number("--port", 0) == 2


def test_loopback_becomes_this_machines_address() -> None:
    spec = WorkerSpec("http://localhost:8000", "tcp://127.0.0.1:5557", "tcp://10.9.9.9:5558")
    assert seen_from_outside(spec, "10.0.0.7") == WorkerSpec(
        "http://10.0.0.7:8000", "tcp://10.0.0.7:5557", "tcp://10.9.9.9:5558"
    )
    assert seen_from_outside(spec, "127.0.0.1") == spec
