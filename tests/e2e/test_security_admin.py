"""The admin port, workers that come and go, and settings that change, on a fleet that works meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import ROOT, Fleet, start_fleet, wait_until

TOKEN = "the-operators-own-token"
AUTH = {"authorization": f"Bearer {TOKEN}"}
CONFIG: dict[str, Any] = {"aliases": {"first": "tiny"}, "policy": "estimated_ttft"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    (folder / "token").write_text(TOKEN)
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Iterator[Fleet]:
    token = str(config.parent / "token")
    args = ("--config", str(config), "--admin-token-file", token, "--cors-origin", "https://chat.example")
    with start_fleet(tmp_path_factory.mktemp("operated"), args=args) as fleet:
        yield fleet


def admin(fleet: Fleet, method: str, path: str, token: bool = True, **more: Any) -> httpx.Response:
    headers = {**(AUTH if token else {}), **more.pop("headers", {})}
    return httpx.request(method, fleet.admin + path, headers=headers, trust_env=False, timeout=30, **more)


def logged(fleet: Fleet) -> str:
    return fleet.gateway_log.read_text() + fleet.log.read_text()


def workers(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in admin(fleet, "GET", "/admin/workers").json()["workers"]}


def chat(fleet: Fleet, text: str = "hello", **more: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}
    return httpx.post(fleet.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)


def served_by(fleet: Fleet, count: int = 6) -> set[str]:
    """Who answers requests that nobody has in cache."""
    answers = [chat(fleet, uuid.uuid4().hex * 3) for _ in range(count)]
    assert [a.status_code for a in answers] == [200] * count
    return {a.headers["x-gateway-worker"] for a in answers}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/workers"), ("POST", "/admin/workers"), ("DELETE", "/admin/workers?id=x"),
        ("POST", "/admin/workers/drain"), ("PUT", "/admin/policy"), ("POST", "/admin/explain"),
        ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/"),
    ],
)  # fmt: skip
def test_the_admin_port_asks_for_its_own_credential(operated: Fleet, method: str, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": TOKEN}):
        answer = admin(operated, method, path, token=False, headers=headers)
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.json()["error"]["type"] == "authentication_error"


def test_the_operator_and_probes_come_in(operated: Fleet) -> None:
    assert admin(operated, "GET", "/metrics").status_code == 200
    assert len(workers(operated)) == 2
    for path in ("/health", "/ready"):
        assert admin(operated, "GET", path, token=False).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gateway.example"])
def test_off_loopback_the_admin_port_does_not_open_without_a_credential(host: str) -> None:
    command = [sys.executable, "-m", "gateway", "serve", "--worker", "http://127.0.0.1:9", "--port", "0"]
    found = subprocess.run(
        [*command, "--admin-host", host], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 2
    assert "GATEWAY_ADMIN_TOKEN" in found.stderr or "cannot listen" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        ({"url": "http://169.254.169.254/latest"}, 403),
        ({"url": "http://[::ffff:169.254.169.254]"}, 403),
        ({"url": "http://93.184.215.14:8000"}, 403),
        ({"url": "http://127.0.0.1:1", "events": "tcp://169.254.169.254:80"}, 403),
        ({"url": "http://127.0.0.1:1", "events": "ipc:///etc/passwd"}, 403),
        ({"url": "file:///etc/passwd"}, 400),
        ({"url": "http://user:pw@127.0.0.1:1"}, 400),
        ({"url": "http://127.0.0.1:1", "unknown": 1}, 400),
        ({}, 422),
    ],
)
def test_admin_cannot_be_made_to_call_what_is_no_engine(
    operated: Fleet, worker: dict[str, Any], status: int
) -> None:
    before = set(workers(operated))
    answer = admin(operated, "POST", "/admin/workers", json=worker)
    assert answer.status_code == status, answer.text
    assert set(workers(operated)) == before


def test_the_gateway_does_not_become_its_own_worker(operated: Fleet) -> None:
    for url in (operated.url, operated.admin):
        assert admin(operated, "POST", "/admin/workers", json={"url": url}).status_code == 403


def test_pages_of_other_sites_may_neither_call_the_api_nor_the_admin_port(operated: Fleet) -> None:
    def preflight(origin: str, method: str = "POST") -> httpx.Headers:
        headers = {"origin": origin, "access-control-request-method": method, "x-request-id": "mine"}
        url = operated.url + "/v1/chat/completions"
        return httpx.options(url, headers=headers, trust_env=False).headers

    assert "access-control-allow-origin" not in preflight("https://evil.example")
    assert preflight("https://evil.example")["x-request-id"] == "mine"
    assert preflight("https://chat.example")["x-request-id"] == "mine"
    assert preflight("https://chat.example")["access-control-allow-origin"] == "https://chat.example"
    assert "DELETE" in preflight("https://chat.example", "DELETE")["access-control-allow-methods"]
    evil = {"origin": "https://evil.example"}
    answer = httpx.get(operated.url + "/v1/models", headers=evil, trust_env=False)
    assert "access-control-allow-origin" not in answer.headers
    assert admin(operated, "GET", "/admin/workers", headers=evil).status_code == 403


def test_a_worker_drains_and_resumes(operated: Fleet) -> None:
    one, other = sorted(workers(operated))
    assert admin(operated, "POST", "/admin/workers/drain", json={"id": one}).status_code == 200
    assert workers(operated)[one]["state"] == "draining"
    assert served_by(operated) == {other}
    assert admin(operated, "POST", "/admin/workers/resume", json={"id": one}).status_code == 200
    wait_until(lambda: one in served_by(operated, 4), what="the resumed worker")
    assert admin(operated, "POST", "/admin/workers/drain", json={"id": "nobody"}).status_code == 404


def test_a_weight_is_taken_and_nonsense_is_not(operated: Fleet) -> None:
    one, _ = sorted(workers(operated))
    for weight, status in ((2.0, 200), (0, 400), (-1, 400), (1.0, 200)):
        answer = admin(operated, "POST", "/admin/workers/weight", json={"id": one, "weight": weight})
        assert answer.status_code == status, answer.text


def test_a_worker_leaves_while_it_streams_and_comes_back(operated: Fleet) -> None:
    """Who is removed finishes what it has: every byte of the stream arrives."""
    before = workers(operated)
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": "stream"}], "max_tokens": 200,
        "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    url = operated.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as answer:
        leaving = answer.headers["x-gateway-worker"]
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        gone = admin(operated, "DELETE", "/admin/workers", params={"id": leaving})
        assert gone.status_code == 200
        assert leaving not in workers(operated)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 200
    assert served_by(operated, 3) == set(before) - {leaving}
    added = admin(operated, "POST", "/admin/workers", json={"url": before[leaving]["url"]})
    assert (added.status_code, added.json()) == (201, {"id": leaving})
    wait_until(lambda: workers(operated)[leaving]["state"] == "ready", what="the worker that came back")
    assert admin(operated, "POST", "/admin/workers", json={"url": leaving}).status_code == 400  # twice


def test_sighup_reloads_without_losing_index_or_requests(operated: Fleet, config: Path) -> None:
    text = "what the index knows stays known " * 10
    chat(operated, text)
    held = {w: row["indexed_blocks"] for w, row in workers(operated).items()}
    operated_before = chat(operated, text)
    assert int(operated_before.headers["x-gateway-matched-tokens"]) > 0
    assert sum(held.values()) > 0
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": "on"}], "max_tokens": 200, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    url = operated.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        config.write_text(yaml.safe_dump({**CONFIG, "aliases": {"second": "tiny"}, "policy": "round_robin",
                                          "max_connections": 77}))  # fmt: skip
        operated.process.send_signal(signal.SIGHUP)
        wait_until(lambda: chat(operated, model="second").status_code == 200, what="the new alias")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert chat(operated, model="first").status_code == 404
    assert admin(operated, "GET", "/admin/policy").json()["*"] == "round_robin"
    assert '"waiting_for_restart": ["max_connections"]' in logged(operated)
    after = {w: row["indexed_blocks"] for w, row in workers(operated).items()}
    assert all(after[w] >= held[w] for w in held)
    explained = admin(
        operated, "POST", "/admin/explain",
        json={"model": "second", "messages": [{"role": "user", "content": text}]},
    ).json()  # fmt: skip
    assert max(row["matched_tokens"] for row in explained["workers"]) > 0


def test_settings_that_cannot_work_change_nothing(operated: Fleet, config: Path) -> None:
    good = config.read_text()
    for bad, reason in (
        ("policy: nonsense\n", "nonsense"),
        ("tries: many\n", "tries"),
        ("a: [1", "not YAML"),
    ):
        count = logged(operated).count("settings were not reloaded")
        config.write_text(bad)
        operated.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda count=count: logged(operated).count("settings were not reloaded") > count,
            what="the refusal",
        )
        assert reason in logged(operated)
        assert chat(operated, model="second").status_code == 200
    config.write_text(good)


def test_the_operators_token_is_exchanged_while_it_runs(operated: Fleet, config: Path) -> None:
    token = config.parent / "token"
    token.write_text("another-token-of-theirs")
    wait_until(lambda: admin(operated, "GET", "/metrics").status_code == 401, what="the end of the old token")
    fresh = {"authorization": "Bearer another-token-of-theirs"}
    assert admin(operated, "GET", "/metrics", token=False, headers=fresh).status_code == 200
    assert "another-token-of-theirs" not in logged(operated)
    assert TOKEN not in logged(operated)
    token.write_text(TOKEN)
    wait_until(lambda: admin(operated, "GET", "/metrics").status_code == 200, what="the first token again")
