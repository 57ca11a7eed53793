"""`prefix-gateway serve --discovery kubernetes`: a gateway process, an API server's double, a real engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Spawn
from tests.gateway.discovery.apiserver import api_server, pod

pytestmark = pytest.mark.anyio


async def test_a_pod_gets_requests_and_loses_them_when_it_terminates(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path
) -> None:
    engine, events, replay, port, admin = (free_port() for _ in range(5))
    worker = spawn(
        "-m", "workers", "serve", "--model", "tiny", "--port", str(engine),
        "--kv-events-port", str(events), "--kv-replay-port", str(replay),
    )  # fmt: skip
    await asyncio.to_thread(worker.wait_http, f"http://127.0.0.1:{engine}/health")
    ports = {"http": engine, "kv-events": events, "kv-replay": replay}
    async with api_server(free_port()) as server:
        gateway = spawn(
            "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin),
            "--discovery", "kubernetes", "--kubernetes-selector", "app=vllm",
            "--kubeconfig", str(server.kubeconfig(tmp_path)),
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        await asyncio.to_thread(gateway.wait_http, url + "/health")
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=url) as client:
            assert (await client.get("/ready")).status_code == 503
            server.refuse = 403
            server.hang_up()
            await _until(client, 503, "no workers are registered (pods of chat: the API server answers 403")
            server.refuse = None
            server.put(pod("vllm-0", "127.0.0.1", ports=ports))
            await _until(client, 200)
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            chat: dict[str, Any] = {
                "model": model,
                "max_tokens": 2,
                "messages": [{"role": "user", "content": "x " * 100}],
            }
            answer = await client.post("/v1/chat/completions", json=chat)
            assert answer.status_code == 200
            assert answer.headers["x-gateway-worker"] == f"http://127.0.0.1:{engine}"
            server.put(pod("vllm-0", "127.0.0.1", ports=ports, terminating=True))
            await _until(client, 503)
            refused = await client.post("/v1/chat/completions", json=chat)
            # nobody serves it any more: 404 for a model that is unknown, never a request to the pod
            assert refused.status_code in (404, 503)
    assert gateway.stop() == 0


async def _until(client: httpx.AsyncClient, status: int, said: str = "") -> None:
    deadline = time.monotonic() + 90
    while (answer := await client.get("/ready")).status_code != status or said not in answer.text:
        assert time.monotonic() < deadline, f"/ready did not answer {status} {said}: {answer.text}"
        await asyncio.sleep(0.1)
