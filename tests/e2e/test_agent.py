"""Agents bring engines into a fleet and take them out; nobody's request suffers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import Site, answers, ready_workers, site
from tests.servers import Server, free_tcp_port, standalone

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with standalone(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def here(redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site"), redis.url) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(here: Site) -> Fleet:
    """It knows no worker but those that register."""
    return here.gateway("--discovery", "redis")


def registration(redis: Server, url: str) -> dict[str, object] | None:
    with redis.client() as client:
        data = client.get(f"pgw:{{{url}}}:registration")
    return json.loads(data) if isinstance(data, bytes) else None


def engine_command(port: int, events: int) -> list[str]:
    return [
        "--", sys.executable, "-m", "workers", "serve", "--model", "sim:20us-per-token,10ms-per-step",
        "--served-model-name", "sim", "--port", str(port), "--kv-events-port", str(events),
    ]  # fmt: skip


def test_one_command_brings_an_engine_in_and_takes_it_out_without_a_lost_request(
    here: Site, redis: Server, gateway: Fleet
) -> None:
    port = free_tcp_port()
    url = f"http://127.0.0.1:{port}"
    agent = here.agent(*engine_command(port, free_tcp_port()))
    here.wait(gateway, workers=1)
    noted = registration(redis, url)
    assert noted is not None
    assert (noted["state"], noted["about"]["model"]) == ("ready", "sim")  # type: ignore[index]
    assert [w["id"] for w in gateway.workers()] == [url]
    assert gateway.metric("gateway_discovery_workers", source="redis") == 1
    assert gateway.metric("gateway_discovery_up", source="redis") == 1
    assert gateway.metric("gateway_discovery_age_seconds", source="redis") < 60

    body = {"model": "sim", "prompt": [7] * 64, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream(
        "POST", gateway.url + "/v1/completions", json=body, trust_env=False, timeout=60
    ) as answer:
        assert answer.status_code == 200
        chunks = answer.iter_lines()
        next(chunks)
        agent.send_signal(signal.SIGTERM)
        wait_until(lambda: gateway.workers()[0]["state"] == "draining", what="the drain")
        refused = httpx.post(gateway.url + "/v1/completions", json=body, trust_env=False, timeout=60)
        assert refused.status_code == 503
        assert agent.poll() is None  # it waits for the stream
        assert list(chunks)[-2] == "data: [DONE]"
    wait_until(lambda: gateway.workers() == [], what="the worker gone")
    assert agent.wait(60) == 0
    assert not answers(url + "/health")


class AsksForKey(BaseHTTPRequestHandler):
    """What an engine says, to whoever shows the key; to /health, as vLLM, without."""

    behind = ""

    def do_GET(self) -> None:
        if self.path != "/health" and self.headers.get("Authorization") != "Bearer s3cret":
            self.send_error(401)
            return
        answer = httpx.get(self.behind + self.path, trust_env=False)
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None: ...


def test_an_engine_that_asks_for_a_key_is_shown_it(here: Site, redis: Server, tmp_path: Path) -> None:
    engine = here.engine()
    here.wait(engine)
    handler = type("Handler", (AsksForKey,), {"behind": engine.url})
    door = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=door.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{door.server_port}"
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    try:
        agent = here.agent("--engine", url, "--worker-api-key-file", str(key))
        wait_until(lambda: registration(redis, url) is not None, what="the registration")
        noted = registration(redis, url)
        assert noted is not None
        # its model stands behind the key
        assert (noted["state"], noted["about"]["model"]) == ("ready", "sim")  # type: ignore[index]
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        door.shutdown()
        door.server_close()


def test_a_killed_agent_costs_no_request(here: Site, gateway: Fleet) -> None:
    engine = here.engine()
    here.wait(engine)
    agent = here.agent(engine=engine)
    here.wait(gateway, workers=1)
    body = {"model": "sim", "prompt": [7] * 64, "max_tokens": 2}
    codes: list[int] = []
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not stop.is_set():
                codes.append(client.post(gateway.url + "/v1/completions", json=body).status_code)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        here.kill(agent)
        # the lease runs out; the engine still answers
        wait_until(lambda: "agent is silent" in gateway.log.read_text(), what="the silence noticed")
        assert ready_workers(gateway) == 1
        again = here.agent(engine=engine)
        count = len(codes)
        wait_until(lambda: len(codes) > count + 5, what="traffic")
    finally:
        stop.set()
        thread.join()
    assert set(codes) == {200}
    # its successor takes it out in order
    wait_until(lambda: "registered as ready" in _log(here, again), what="the new agent")
    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 0
    wait_until(lambda: gateway.workers() == [], what="the worker gone")
    assert engine.up()  # it was not the agent's to end


def test_the_engines_end_is_the_agents_and_known_at_once(here: Site, gateway: Fleet) -> None:
    port = free_tcp_port()
    command = engine_command(port, free_tcp_port())
    agent = here.agent(*command)
    here.wait(gateway, workers=1)
    (engine,) = psutil.Process(agent.pid).children()
    engine.kill()
    assert agent.wait(60) == 137
    wait_until(lambda: gateway.workers() == [], what="the worker gone")


def test_an_engine_that_cannot_start_says_so_with_its_own_code(here: Site) -> None:
    agent = here.agent("--", sys.executable, "-m", "workers", "serve", "--model", "no-such-model")
    assert agent.wait(60) == 2
    assert "no-such-model" in _log(here, agent)


def test_what_is_missing_is_said_before_anything_starts(here: Site) -> None:
    agent = here.agent()
    assert agent.wait(60) == 2
    assert "no engine: give --engine URL" in _log(here, agent)


def test_a_wrong_password_is_said_before_the_engine_starts(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis", password="right") as redis,
        site(tmp_path / "site", f"redis://:wrong-one@127.0.0.1:{redis.port}") as here,
    ):
        agent = here.agent(*engine_command(free_tcp_port(), free_tcp_port()))
        assert agent.wait(60) == 2
        assert "refuses us" in _log(here, agent)
        assert "wrong-one" not in _log(here, agent)


def _log(here: Site, process: subprocess.Popen[bytes]) -> str:
    number = here.processes.index(process)
    log: Path = next(here.folder.glob(f"{number:02d}-*.log"))
    return log.read_text(errors="replace")
