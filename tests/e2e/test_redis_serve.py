"""`serve --redis-url` as an operator meets it: what stops it, what does not, and the `index` commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.conftest import Process, Spawn
from tests.e2e.conftest import wait_until
from tests.servers import standalone

pytestmark = pytest.mark.timeout(240)

NOBODY = "http://127.0.0.1:9"


def cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *args], capture_output=True, text=True, timeout=120
    )


def serve(spawn: Spawn, ports: tuple[int, int], url: str, *args: str) -> Process:
    return spawn(
        "-m",
        "gateway",
        "serve",
        "--port",
        str(ports[0]),
        "--admin-port",
        str(ports[1]),
        "--redis-url",
        url,
        *args,
    )


def test_a_wrong_password_ends_it_with_a_word(tmp_path: Path) -> None:
    with standalone(tmp_path, password="right") as server:
        url = f"redis://:wrong-one@127.0.0.1:{server.port}"
        ended = cli("serve", "--port", "0", "--worker", NOBODY, "--redis-url", url)
    assert ended.returncode == 2
    assert "refuses us" in ended.stderr
    assert "wrong-one" not in ended.stderr + ended.stdout


def test_a_password_that_no_url_could_have(
    tmp_path: Path, spawn: Spawn, free_port: Callable[[], int]
) -> None:
    """As a Secret gives it to gateway and agent: in the environment, nothing encoded."""
    password = "a/b+c=?@#%41:"
    ports, engine, events = (free_port(), free_port()), free_port(), free_port()
    given = {"GATEWAY_REDIS_PASSWORD": password}
    with standalone(tmp_path, password=password) as server:
        url = f"redis://127.0.0.1:{server.port}"
        gateway = spawn(
            "-m", "gateway", "serve", "--port", str(ports[0]), "--admin-port", str(ports[1]),
            "--redis-url", url, "--discovery", "redis", env=given,
        )  # fmt: skip
        agent = spawn(
            "-m", "gateway", "agent", "--redis-url", url, "--advertise-host", "127.0.0.1", "--",
            sys.executable, "-m", "workers", "serve", "--model", "sim:20us-per-token,10ms-per-step",
            "--port", str(engine), "--kv-events-port", str(events), env=given,
        )  # fmt: skip
        gateway.wait_http(f"http://127.0.0.1:{ports[0]}/health")

        def workers() -> list[str]:
            answer = httpx.get(f"http://127.0.0.1:{ports[1]}/admin/workers", trust_env=False, timeout=10)
            return [worker["id"] for worker in answer.json()["workers"]]

        wait_until(lambda: workers() == [f"http://127.0.0.1:{engine}"], 60, "the engine that registered")
        assert password not in gateway.output() + agent.output()


def test_told_to_wait_it_serves_without(tmp_path: Path, spawn: Spawn, free_port: Callable[[], int]) -> None:
    ports = free_port(), free_port()
    with standalone(tmp_path, password="right") as server:
        url = f"redis://:wrong-one@127.0.0.1:{server.port}"
        gateway = serve(spawn, ports, url, "--worker", NOBODY, "--redis-wait")
        gateway.wait_http(f"http://127.0.0.1:{ports[0]}/health")
        assert "wrong-one" not in gateway.output()


def test_a_redis_that_evicts_is_refused(tmp_path: Path) -> None:
    with standalone(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as server:
        ended = cli("serve", "--port", "0", "--worker", NOBODY, "--redis-url", server.url)
    assert ended.returncode == 2
    assert "set maxmemory-policy to noeviction" in ended.stderr


def test_told_to_wait_it_serves_with_a_redis_that_evicts_and_says_so(
    tmp_path: Path, spawn: Spawn, free_port: Callable[[], int]
) -> None:
    ports = free_port(), free_port()
    with standalone(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "volatile-ttl") as server:
        gateway = serve(spawn, ports, server.url, "--worker", NOBODY, "--redis-wait")
        gateway.wait_http(f"http://127.0.0.1:{ports[0]}/health")
        assert "(maxmemory-policy volatile-ttl): set maxmemory-policy to noeviction" in gateway.output()
        shown = httpx.get(f"http://127.0.0.1:{ports[1]}/metrics", trust_env=False, timeout=30).text
        assert "\ngateway_redis_evicts 1.0\n" in shown


def test_a_url_that_can_not_be_one() -> None:
    ended = cli("serve", "--port", "0", "--worker", NOBODY, "--redis-url", "http://:pw@h")
    assert ended.returncode == 2
    assert "redis://" in ended.stderr
    assert "pw" not in ended.stderr


def test_absent_redis_then_stats_verify_and_clear(
    tmp_path: Path, spawn: Spawn, free_port: Callable[[], int]
) -> None:
    engine, events, ports = free_port(), free_port(), (free_port(), free_port())
    worker, admin = f"http://127.0.0.1:{engine}", f"http://127.0.0.1:{ports[1]}"
    spawn("-m", "workers", "serve", "--model", "tiny", "--port", str(engine), "--kv-events-port", str(events))
    with standalone(tmp_path) as server:
        server.kill()
        gateway = serve(spawn, ports, server.url, "--worker", worker)
        gateway.wait_http(f"http://127.0.0.1:{ports[0]}/ready", timeout=100)
        model = httpx.get(f"http://127.0.0.1:{ports[0]}/v1/models", timeout=30).json()["data"][0]["id"]
        body = {"model": model, "prompt": list(range(300, 350)), "max_tokens": 1}
        answer = httpx.post(f"http://127.0.0.1:{ports[0]}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, "Redis is away, and no request notices"

        def stats() -> dict[str, dict[str, object]]:
            found: dict[str, dict[str, object]] = httpx.get(admin + "/admin/index/shared", timeout=30).json()
            return found

        wait_until(lambda: stats()["index"]["held"] == {worker: 3}, 60, "the engine's word")
        assert stats()["redis"]["up"] is False
        server.start()
        wait_until(lambda: bool(stats()["redis"]["up"]), 60, "Redis back")

        def verdict() -> tuple[int, object, object]:
            done = cli("index", "verify", "--json", "--admin-url", admin)
            row = json.loads(done.stdout)["workers"][0]
            return done.returncode, row["state"], row["blocks"]

        wait_until(lambda: verdict() == (0, "clean", 3), 100, "the books in Redis")
        shown = cli("index", "stats", "--admin-url", admin)
        assert worker in shown.stdout
        assert "writer" in shown.stdout

        cleared = cli("index", "clear", "--worker", worker, "--admin-url", admin)
        assert cleared.stdout == f"cleared {worker}\n"
        wait_until(lambda: verdict() == (0, "clean", 3), 100, "learned anew from the engine's replay")
        unknown = cli("index", "clear", "--worker", "http://nobody", "--admin-url", admin)
        assert unknown.returncode == 2
        assert "no worker 'http://nobody'" in unknown.stderr
