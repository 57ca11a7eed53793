"""Asks an engine how many requests it still has: what a drain waits for."""

from __future__ import annotations

import httpx

from gateway.fleet.engine_metrics import samples

_IN_FLIGHT = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
)


async def in_flight(client: httpx.AsyncClient, url: str, timeout: float = 2.0) -> int | None:
    """Requests that run or wait there; None where it does not say."""
    try:
        response = await client.get(f"{url}/metrics", timeout=timeout)
    except httpx.HTTPError:
        return None
    if not response.is_success:
        return None
    counts = [sample.value for sample in samples(response.text, _IN_FLIGHT)]
    return int(sum(counts)) if counts else None
