"""Illnesses of the traffic and of its spread, each on engines of its own behind one gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Fleet
from tests.e2e.sick import (
    EngineSpec,
    Examined,
    chat_body,
    engines,
    evidence,
    examine,
    finding,
    gateway,
    of,
    text,
)
from tests.ports import free_port
from tests.servers import standalone

# whole fleets start here: what they need on busy cores
pytestmark = pytest.mark.timeout(400)

WARD = (
    EngineSpec("dated"),
    EngineSpec("cramped", ["--num-blocks", "96"]),
    EngineSpec("scattered"),
    EngineSpec("scattered"),
    EngineSpec("sticky", ["--model", "sim:5ms-per-step"]),
    EngineSpec("sticky", ["--model", "sim:5ms-per-step"]),
)

NOBODY = "tcp://127.0.0.1:9"


def _visits() -> Iterator[dict[str, Any]]:
    """What makes each of them ill."""
    system = text(1, 150)
    for n in count():
        # the time stands first, and all that follows is the same
        yield {"model": "dated", **chat_body(text(n, 6), system=f"It is {text(1000 + n, 8)}. {system}")}
        # twelve long prompts, round and round: each is gone before it comes again
        yield {"model": "cramped", **chat_body(text(n % 12, 120))}
        # the same prompt twice in a row, under a policy that sends it to both in turn
        yield {"model": "scattered", **chat_body(text(2000 + n // 2, 100))}


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    folder = tmp_path_factory.mktemp("ward")
    policies = ["--model-policy", "scattered=round_robin", "--model-policy", "sticky=session_affinity"]
    with engines(folder, WARD, free_port) as lines, gateway(folder, lines, free_port, *policies) as fleet:
        return asyncio.run(_examine_at_work(fleet))


async def _examine_at_work(fleet: Fleet) -> Examined:
    async with httpx.AsyncClient(trust_env=False, timeout=90) as client:

        async def ask(body: dict[str, Any]) -> None:
            (await client.post(fleet.url + "/v1/chat/completions", json=body)).raise_for_status()

        async def one_session() -> None:
            body = chat_body("hello", max_tokens=40)
            while True:
                await ask({"model": "sticky", "user": "the only one", **body})

        crowd = [asyncio.create_task(one_session()) for _ in range(12)]
        look = asyncio.create_task(asyncio.to_thread(examine, fleet.admin, window=8.0, interval=0.4))
        for body in _visits():
            if look.done():
                break
            await ask(body)
        result = await look
        for asker in crowd:
            asker.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return result


def test_a_changing_first_line(examined: Examined) -> None:
    found = finding(examined, "prefix-broken")
    assert found["subject"] == "dated"
    assert evidence(found, "its prompts diverge at block") <= 1
    assert evidence(found, "tokens equal anywhere") > 10 * evidence(found, "tokens equal up to there")
    assert "first line" in found["cause"] or "block 1" in found["cause"]


def test_a_working_set_larger_than_the_cache(examined: Examined) -> None:
    found = finding(examined, "working-set")
    assert found["subject"] == "cramped"
    assert evidence(found, "blocks the fleet holds") == 96
    assert evidence(found, "distinct blocks asked for") > 96
    # all but the first round came again
    assert int(evidence(found, "with a cache that never forgets").split()[0]) >= 40
    assert int(evidence(found, "hit rate that this cache can give").split()[0]) <= 20


def test_affinity_lost(examined: Examined) -> None:
    found = finding(examined, "affinity-lost")
    assert found["subject"] == "scattered"
    assert evidence(found, "policy") == "round_robin"
    assert "estimated_ttft" in found["remedy"][0]


def test_a_hot_spot(examined: Examined) -> None:
    found = finding(examined, "hot-spot")
    assert evidence(found, "requests there, mean") > 3
    assert "session_affinity" in evidence(found, "policy")


def test_nobody_has_what_another_has(examined: Examined) -> None:
    assert of(examined, "dated") == {"prefix-broken"}
    assert of(examined, "cramped") == {"working-set"}
    assert of(examined, "scattered") == {"affinity-lost"}
    assert {one["id"] for one in examined[1]} == {"prefix-broken", "working-set", "affinity-lost", "hot-spot"}
    assert examined[0] == 1


def test_a_stale_replica_and_a_lost_redis(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        engines(tmp_path, [EngineSpec("shared")], free_port) as lines,
        gateway(tmp_path / "one", lines, free_port, "--redis-url", redis.url) as knows,
        gateway(tmp_path / "two", [f"{lines[0].partition(',')[0]},events={NOBODY}"], free_port) as deaf,
    ):
        for n in range(30):
            body = {"model": "shared", **chat_body(text(n, 60))}
            httpx.post(knows.url + "/v1/chat/completions", json=body, trust_env=False, timeout=60)
        knows.settle()
        healthy = examine(knows.admin, window=0.5)
        assert healthy == (0, [])

        both = examine(knows.admin, deaf.admin, window=0.5)
        found = finding(both, "stale-replica")
        assert found["subject"] == deaf.admin
        assert evidence(found, "blocks it knows there") == 0

        redis.kill()
        lost = examine(knows.admin, window=4.0)
        found = finding(lost, "redis-degraded")
        assert (found["subject"], evidence(found, "connected now")) == (knows.admin, "no")
        assert lost[0] == 3


def test_nobody_there_exits_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "doctor", "--admin-url", "http://127.0.0.1:9", "--window", "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no gateway at http://127.0.0.1:9" in done.stderr
