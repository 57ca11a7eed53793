"""Starting, stopping, and what a fleet does when a worker dies or comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import Spawn
from tests.e2e.conftest import ROOT, start_fleet, wait_until

LONG = "A prompt long enough to fill a few blocks of sixteen tokens each, and then some more. " * 4


def ask(url: str, content: str = LONG) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
    return httpx.post(url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)


def run(*args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *args], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with start_fleet(tmp_path) as fleet:
        children = psutil.Process(fleet.process.pid).children(recursive=True)
        assert len(children) >= 2
        wait_until(lambda: "ready: " in fleet.log.read_text(), 30, "the banner")
        assert fleet.stop() == 0
    _, alive = psutil.wait_procs(children, timeout=15)
    assert alive == []
    assert "Traceback" not in fleet.output()


def test_ready_is_said_when_the_models_are_known(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port, log = free_port(), tmp_path / "up.out"
    command = [sys.executable, "-m", "gateway", "up", "--model", "sim:fast", "--workers", "1"]
    command += ["--port", str(port), "--admin-port", str(free_port()), "--run-dir", str(tmp_path)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT) as process:
        try:
            wait_until(lambda: process.poll() is not None or "ready: " in log.read_text(), 60, "the banner")
            models = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()["data"]
            assert len(models) == 1
            assert f"model {models[0]['id']}, 1 workers" in log.read_text()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_a_gateway_that_is_told_to_end_while_it_starts(
    number: int, tmp_path: Path, spawn: Spawn, interruptible: None
) -> None:
    process = spawn("-m", "gateway", "up", "--model", "tiny", "--port", "0", "--run-dir", str(tmp_path))
    up = psutil.Process(process.pid)
    wait_until(lambda: len(up.children()) == 2, 60, "its workers")
    workers = up.children()
    process.popen.send_signal(number)
    process.popen.wait(30)
    _, alive = psutil.wait_procs(workers, timeout=15)
    for worker in alive:
        worker.kill()
    assert alive == []
    assert "Traceback" not in process.output()


def test_workers_end_with_a_killed_gateway(tmp_path: Path) -> None:
    with start_fleet(tmp_path) as fleet:
        children = psutil.Process(fleet.process.pid).children(recursive=True)
        fleet.process.send_signal(signal.SIGKILL)
        fleet.process.wait()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port), "--worker", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["203.0.113.5", "nosuch.invalid"])
@pytest.mark.parametrize("command", [("up", "--model", "tiny"), ("serve", "--worker", "http://127.0.0.1:1")])
def test_an_address_that_is_not_this_machine_s_is_not_a_taken_port(
    command: tuple[str, ...], host: str
) -> None:
    done = run(*command, "--host", host)
    assert done.returncode == 2
    assert f"cannot listen on {host}:8080 (" in done.stderr
    assert done.stderr.endswith("; give an address of this machine\n")


def test_serving_nobody_says_what_to_do() -> None:
    done = run("serve")
    assert done.returncode == 2
    assert "--worker URL" in done.stderr


def test_a_bad_worker_line_is_explained() -> None:
    done = run("serve", "--worker", "http://127.0.0.1:1,evnts=tcp://x:1")
    assert done.returncode == 2
    assert "evnts" in done.stderr


def test_an_unknown_policy_lists_those_there_are() -> None:
    done = run("serve", "--worker", "http://127.0.0.1:1", "--policy", "best")
    assert done.returncode == 2
    assert "estimated_ttft" in done.stderr


def test_a_model_that_is_not_there_fails_with_the_workers_own_words(tmp_path: Path) -> None:
    done = run("up", "--model", "/no/such/model", "--port", "0", "--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert "/no/such/model" in done.stderr


def test_a_worker_that_dies_is_started_again_and_returns_empty(tmp_path: Path) -> None:
    with start_fleet(tmp_path) as fleet:
        first = ask(fleet.url)
        fleet.settle()
        holder = first.headers["x-gateway-worker"]
        assert int(ask(fleet.url).headers["x-gateway-matched-tokens"]) > 0
        port = holder.rsplit(":", 1)[1]
        process = next(
            p
            for p in psutil.Process(fleet.process.pid).children()
            if p.cmdline()[p.cmdline().index("--port") + 1] == port
        )
        os.kill(process.pid, signal.SIGKILL)
        # the next request finds the other worker, in the same try or by failover: never an error
        during = ask(fleet.url)
        assert during.status_code == 200
        assert during.headers["x-gateway-worker"] != holder
        wait_until(lambda: _events_of(fleet.workers(), holder)["epochs"] >= 1, 90, "a new epoch")
        wait_until(lambda: _row(fleet.workers(), holder)["state"] == "ready", 90, "its return")
        assert _row(fleet.workers(), holder)["indexed_blocks"] == 0
        body = {"model": "tiny", "messages": [{"role": "user", "content": LONG}]}
        answer = httpx.post(fleet.admin + "/admin/explain", json=body, trust_env=False).json()
        assert {w["worker"]: w["matched_tokens"] for w in answer["workers"]}[holder] == 0
        assert f"worker {port} ended (signal 9)" in fleet.log.read_text()
        assert "starting it again" in fleet.log.read_text()


def test_a_second_fleet_on_the_same_port_leaves_the_first_alone(tmp_path: Path) -> None:
    with start_fleet(tmp_path, workers=1) as fleet:
        ask(fleet.url)
        # the line is written when the request is over, which its client may know a moment sooner
        wait_until(
            lambda: "/v1/chat/completions" in fleet.gateway_log.read_text(), 30, "the access log's line"
        )
        before = fleet.gateway_log.read_text()
        port = fleet.url.rsplit(":", 1)[1]
        second = run("up", "--model", "tiny", "--port", port, "--run-dir", str(tmp_path))
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port} (Address already in use); --port" in second.stderr
        assert "worker 1" not in second.stderr
        assert fleet.gateway_log.read_text().startswith(before)
        assert ask(fleet.url).status_code == 200


def _row(rows: list[dict[str, object]], worker: str) -> dict[str, object]:
    return next(r for r in rows if r["id"] == worker)


def _events_of(rows: list[dict[str, object]], worker: str) -> dict[str, int]:
    return _row(rows, worker)["events"]  # type: ignore[return-value]


def test_admin_changes_the_fleet_at_run_time(tmp_path: Path) -> None:
    with start_fleet(tmp_path) as fleet:
        one, two = [w["id"] for w in fleet.workers()]
        with httpx.Client(base_url=fleet.admin, trust_env=False, timeout=30) as admin:
            assert admin.post("/admin/workers/drain", json={"id": one}).status_code == 200
            assert {ask(fleet.url, f"drained {i}").headers["x-gateway-worker"] for i in range(4)} == {two}
            assert admin.post("/admin/workers/resume", json={"id": one}).status_code == 200
            assert admin.put("/admin/policy", json={"policy": "round_robin"}).json() == {"*": "round_robin"}
            assert {ask(fleet.url, f"turn {i}").headers["x-gateway-worker"] for i in range(4)} == {one, two}
            refused = admin.put("/admin/policy", json={"policy": "nonsense"})
            assert refused.status_code == 400
            assert "round_robin" in refused.json()["error"]["message"]
            assert admin.delete("/admin/workers", params={"id": one}).status_code == 200
            assert [w["id"] for w in fleet.workers()] == [two]
            assert admin.delete("/admin/workers", params={"id": one}).status_code == 404
            again = admin.post("/admin/workers", json={"url": one})
            assert again.status_code == 201, again.text
            wait_until(lambda: all(w["state"] == "ready" for w in fleet.workers()), 30, "the added worker")
            assert admin.post("/admin/workers", json={"url": "ftp://x"}).status_code == 400
            assert admin.post("/admin/index/verify").json() == {"status": "sound"}
