"""A new replica joins a fleet that holds a million blocks. `make chaos`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.redis_memory import fill
from gateway.index.replication.shelf import Shelf, load_scripts
from gateway.store.connection import Store
from gateway.store.url import parse_store_url
from gateway.types import WorkerId
from tests.e2e.replicas import site
from tests.servers import standalone

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

BLOCKS = 1_000_000
WITHIN_CPU_S = 30.0


async def books(redis_url: str, workers: list[str]) -> None:
    """As if another replica had written them, which holds the leases still."""
    store = Store(parse_store_url(redis_url), timeout=30)
    scripts = load_scripts()
    for worker in workers:
        await fill(Shelf(store, WorkerId(worker), scripts), BLOCKS // len(workers))
    await store.close()


def test_a_new_replica_says_it_is_loading_and_answers_meanwhile(tmp_path: Path) -> None:
    with standalone(tmp_path / "redis") as redis, site(tmp_path / "site", redis.url) as here:
        engines = [here.engine() for _ in range(4)]
        asyncio.run(books(redis.url, [engine.url for engine in engines]))
        here.wait(*engines)
        began = time.monotonic()
        replica = here.gateway(engines=engines)
        reasons: list[str] = []
        codes: list[int] = []
        with httpx.Client(trust_env=False, timeout=60) as http:
            while True:
                assert replica.process.poll() is None, here.output()
                assert time.monotonic() - began < 300, reasons
                try:
                    ready = http.get(replica.url + "/ready")
                except httpx.ConnectError:
                    time.sleep(0.05)
                    continue
                if ready.status_code == 200:
                    break
                reasons.append(ready.json()["reason"])
                if reasons[-1].startswith("loading the blocks"):
                    body = {"model": "sim", "prompt": [7] * 64, "max_tokens": 1}
                    codes.append(http.post(replica.url + "/v1/completions", json=body).status_code)
        seconds = time.monotonic() - began
        times = psutil.Process(replica.process.pid).cpu_times()
        held = replica.get("/admin/index")["held"]
        assert sum(held.values()) >= BLOCKS
        assert any(reason.startswith("loading the blocks") for reason in reasons)
        assert set(codes) == {200}
        # of a core, so that a busy machine does not decide
        cpu = times.user + times.system
        if path := os.environ.get("CHAOS_RESULTS"):
            line = {
                "scenario": "a replica joins 1,000,000 blocks",
                "requests": len(codes),
                "ready_s": round(seconds, 1),
                "cpu_s": round(cpu, 1),
            }
            with Path(path).open("a") as out:
                out.write(json.dumps(line) + "\n")
        assert cpu < WITHIN_CPU_S
