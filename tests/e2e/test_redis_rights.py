"""Gateways and an agent as a Redis user with the documented rights: nothing that they do is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth.hashing import sha256_of
from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import site
from tests.redis_rights import documented, give, refused
from tests.servers import standalone

pytestmark = pytest.mark.timeout(300)

LIMITED, FREE = {"authorization": "Bearer key-few"}, {"authorization": "Bearer key-free"}


def post(gateway: Fleet, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    return httpx.post(
        gateway.url + path, json={"model": "sim", **body}, headers=headers, trust_env=False, timeout=60
    )


def index(gateway: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gateway", "index", *words, "--admin-url", gateway.admin]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_the_documented_rights_are_enough_for_all_that_talks_to_redis(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    few = {"requests_per_minute": 4, "tokens_per_minute": 100_000, "max_parallel": 3}
    keys.write_text(
        json.dumps(
            [
                {"id": "few", "hash": sha256_of("key-few"), **few},
                {"id": "free", "hash": sha256_of("key-free")},
            ]
        )
    )
    with (
        standalone(tmp_path / "redis") as server,
        site(tmp_path / "site", give(server, documented())) as here,
    ):
        attended, given = here.engine("tiny"), here.engine("tiny")
        args = ("--discovery", "redis", "--api-keys-file", str(keys))
        one, other = (here.gateway(*args, engines=[given]) for _ in range(2))
        here.wait(attended, given)
        agent = here.agent(engine=attended)
        here.wait(one, other, workers=2)

        # limits, counted together, and settled
        body = {"prompt": [7] * 200, "max_tokens": 2}
        asked = [post(which, "/v1/completions", LIMITED, **body) for which in (one, other) * 3]
        assert [answer.status_code for answer in asked] == [200, 200, 200, 200, 429, 429]
        # which worker keeps a response is told by one and asked of the other; this engine keeps none
        answer = post(one, "/v1/responses", FREE, input="hello there", max_output_tokens=2)
        assert answer.status_code == 200, answer.text
        name = answer.json()["id"]
        with server.client() as admin:
            wait_until(lambda: bool(admin.exists(f"pgw:response:{name}")), 30, "the response's worker")
        got = httpx.get(f"{other.url}/v1/responses/{name}", headers=FREE, trust_env=False, timeout=60)
        assert (got.status_code, got.json()["error"]["param"]) == (404, "response_id")
        # a writer's and a mirror's books, the agent's worker and the gateways' own
        for number in range(4):
            answer = post(one, "/v1/completions", FREE, prompt=[number] * 200, max_tokens=2)
            assert answer.status_code == 200

        def clean() -> bool:
            shown = [json.loads(index(which, "verify", "--json").stdout) for which in (one, other)]
            states = [worker["state"] for each in shown for worker in each["workers"]]
            return states == ["clean"] * 4

        wait_until(clean, 100, "books that agree")
        assert index(one, "clear", "--worker", given.url).returncode == 0
        wait_until(clean, 100, "books that agree after one was cleared")
        # a successor takes over where the gateway that wrote is gone
        here.kill(one.process)
        third = here.gateway(*args, engines=[given])
        here.wait(third, workers=2)
        one = third
        wait_until(clean, 100, "books that agree after a writer's death")
        for gateway in (one, other):
            assert gateway.metric("gateway_redis_up") == 1
        # an agent that leaves in order
        agent.terminate()
        wait_until(lambda: [w["id"] for w in one.workers()] == [given.url], 60, "the worker gone")
        assert agent.wait(60) == 0
        assert refused(server) == []
        with server.client() as admin:
            stats = admin.info("commandstats")
        assert {"cmdstat_time", "cmdstat_subscribe", "cmdstat_publish", "cmdstat_xread"} <= set(stats)
