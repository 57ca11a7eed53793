"""Two replicas over one Redis: what a key has used at one, it has used at the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth.hashing import sha256_of
from tests.conftest import Process, Spawn
from tests.servers import Server, standalone


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with standalone(tmp_path) as running:
        yield running


def post(url: str, key: str, path: str = "/v1/completions") -> httpx.Response:
    body = {"model": "tiny", "prompt": "hello there", "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(url + path, json=body, headers=headers, trust_env=False, timeout=60)


def test_limits_hold_across_replicas_and_engines_get_their_own_key(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path, server: Server
) -> None:
    keys, engine_key = tmp_path / "keys.json", tmp_path / "engine-key"
    entries: list[dict[str, Any]] = [
        {"id": "few", "hash": sha256_of("key-few"), "requests_per_minute": 4},
        {"id": "many", "hash": sha256_of("key-many")},
    ]
    keys.write_text(json.dumps(entries))
    engine_key.write_text("the-engines-key\n")
    engine = free_port()
    spawn("-m", "workers", "serve", "--model", "tiny", "--port", str(engine))
    replicas: list[tuple[Process, str]] = []
    for _ in range(2):
        port = free_port()
        process = spawn(
            "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(free_port()),
            "--worker", f"http://127.0.0.1:{engine}", "--redis-url", server.url,
            "--api-keys-file", str(keys), "--worker-api-key-file", str(engine_key),
        )  # fmt: skip
        replicas.append((process, f"http://127.0.0.1:{port}"))
    for process, url in replicas:
        process.wait_http(url + "/ready", timeout=100)
    one, other = (url for _, url in replicas)
    statuses = [post(url, "key-few").status_code for url in (one, other, one, other, one, other)]
    assert statuses == [200, 200, 200, 200, 429, 429]
    assert [post(url, "key-many").status_code for url in (one, other)] == [200, 200]
    for process, _ in replicas:
        assert "the-engines-key" not in process.output()
