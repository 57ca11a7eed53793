"""The doctor at the admin port, on a whole gateway behind its guard."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.diagnosis.diagnose import RULES
from tests.faults import FaultyEngine, hangs
from tests.gateway.api.rig import http, running
from tests.gateway.api.whole import Whole, whole

TOKEN = "an-admin-token-of-some-length"


@asynccontextmanager
async def sick(port: int, **settings: Any) -> AsyncIterator[tuple[Whole, str]]:
    """A gateway whose only worker does not exist; its admin port's URL."""
    async with (
        whole(f"http://127.0.0.1:{port}", ready=0, **settings) as gateway,
        running(gateway.app.admin) as admin,
    ):
        async with asyncio.timeout(30):
            while not gateway.app.view.workers()[0].reason:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        yield gateway, f"http://127.0.0.1:{admin}"


@pytest.mark.anyio
async def test_a_worker_that_is_not_there_is_found(free_port: Callable[[], int]) -> None:
    port = free_port()
    async with sick(port) as (_, admin), http() as client:
        answer = await client.post(admin + "/admin/doctor", params={"window": 1})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["replicas"] == ["http://this-gateway"]
    assert said["engines"] == [f"http://127.0.0.1:{port}"]
    assert said["rules"] == len(RULES) == 21
    assert said["window_s"] >= 1
    found, other = said["findings"]
    assert (other["id"], other["severity"]) == ("engine-metrics-missing", "warning")
    assert (found["id"], found["severity"]) == ("worker-down", "critical")
    assert found["subject"] == f"http://127.0.0.1:{port}"
    assert found["runbook"] == "docs/runbooks/worker-down.md"


@pytest.mark.anyio
async def test_an_engine_that_hangs_holds_up_neither_the_window_nor_the_others() -> None:
    """It is waited for as long again as the window was, at least 2 s; a question's own limit is 10 s."""
    async with FaultyEngine(hangs()) as engine:
        port = int(engine.url.rpartition(":")[2])
        async with sick(port, health_timeout=0.1) as (_, admin), http() as client:
            answer = await client.post(admin + "/admin/doctor", params={"window": 1}, timeout=60)
    said = answer.json()
    assert 1 <= said["window_s"] < 8
    (metrics,) = (f for f in said["findings"] if f["id"] == "engine-metrics-missing")
    assert re.search(r"no answer in [2-9] s", json.dumps(metrics))


@pytest.mark.anyio
async def test_one_run_at_a_time(free_port: Callable[[], int]) -> None:
    async with sick(free_port()) as (_, admin), http() as client:
        answers = await asyncio.gather(
            *(client.post(admin + "/admin/doctor", params={"window": 2}) for _ in range(2))
        )
        assert sorted(a.status_code for a in answers) == [200, 429]
        refused = next(a for a in answers if a.status_code == 429)
        assert refused.headers["retry-after"] == "2"
        assert "one run at a time" in refused.json()["error"]["message"]
        # and the next one is served
        again = await client.post(admin + "/admin/doctor", params={"window": 1})
        assert again.status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("window", ["0", "-5", "61", "inf", "nan", "soon"])
async def test_a_window_is_bounded(free_port: Callable[[], int], window: str) -> None:
    async with sick(free_port()) as (_, admin), http() as client:
        answer = await client.post(admin + "/admin/doctor", params={"window": window})
        assert answer.status_code == 422


@pytest.mark.anyio
async def test_the_operator_alone_may_ask_and_needs_no_second_credential(
    free_port: Callable[[], int],
) -> None:
    async with sick(free_port(), admin_token=TOKEN) as (_, admin), http() as client:

        async def ask(**headers: str) -> httpx.Response:
            return await client.post(admin + "/admin/doctor", params={"window": 1}, headers=headers)

        assert (await ask()).status_code == 401
        assert (await ask(authorization="Bearer wrong")).status_code == 401
        right = f"Bearer {TOKEN}"
        assert (await ask(authorization=right, origin="http://elsewhere.example")).status_code == 403
        answer = await ask(authorization=right)
        assert answer.status_code == 200
        assert answer.json()["findings"][0]["id"] == "worker-down"


@pytest.mark.anyio
async def test_a_shutdown_ends_a_run(free_port: Callable[[], int]) -> None:
    async with sick(free_port()) as (gateway, admin), http() as client:
        gateway.app.drain()
        answer = await client.post(admin + "/admin/doctor", params={"window": 60})
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "shutting down"
