"""Asks an engine how many requests it still has: what a drain waits for."""

from __future__ import annotations

from gateway.errors import UpstreamError
from gateway.fleet.engine_metrics import samples
from gateway.types import AskEngine

_IN_FLIGHT = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
)


async def in_flight(ask: AskEngine, url: str, timeout: float = 2.0) -> int | None:
    """Requests that run or wait there; None where it does not say."""
    try:
        answer = await ask(url, "/metrics", timeout=timeout)
    except UpstreamError:
        return None
    if not answer.good:
        return None
    counts = [sample.value for sample in samples(answer.body.decode(errors="replace"), _IN_FLIGHT)]
    return int(sum(counts)) if counts else None
