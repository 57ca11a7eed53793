"""What a request does to the engine, seen from outside: counters, KV events, and clients that leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import zmq

from gateway.kv.codec import decode_batch
from gateway.kv.events import BlockStored

IDS = [(11 * i) % 1000 + 10 for i in range(100)]


@pytest.fixture(scope="module")
def slow(start_engine: Callable[..., Any]) -> Any:
    """20 ms a step: an answer of 4,000 tokens takes over a minute, unless it is aborted."""
    return start_engine("--model", "sim:20ms-per-step", "--max-model-len", "8192")


def post(engine: Any, body: dict[str, Any], path: str = "/v1/completions") -> Any:
    answer = httpx.post(engine.url + path, json={"model": "tiny-llama", **body}, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_counters_are_tokens(tiny: Any) -> None:
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")
    before = [tiny.metric(f"vllm:{name}_total") for name in names]
    for _ in range(2):
        post(tiny, {"prompt": IDS, "max_tokens": 3, "ignore_eos": True, "cache_salt": "counters"})
    after = [tiny.metric(f"vllm:{name}_total") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [200, 96, 200, 6]


def test_finished_requests_are_measured_and_counted_by_reason(tiny: Any) -> None:
    success = "vllm:request_success_total"
    reasons = ("length", "stop", "abort", "error")
    before = [tiny.metric(success, finished_reason=reason) for reason in reasons]
    first_tokens = tiny.metric("vllm:time_to_first_token_seconds_count")
    gaps = tiny.metric("vllm:inter_token_latency_seconds_count")
    generated = post(tiny, {"prompt": IDS, "max_tokens": 4, "ignore_eos": True, "temperature": 0})
    text = generated["choices"][0]["text"]
    post(tiny, {"prompt": IDS, "max_tokens": 4, "ignore_eos": True, "temperature": 0, "stop": text[:1]})
    after = [tiny.metric(success, finished_reason=reason) for reason in reasons]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 0, 0]
    assert tiny.metric("vllm:time_to_first_token_seconds_count") - first_tokens == 2
    assert tiny.metric("vllm:inter_token_latency_seconds_count") - gaps >= 3


def test_the_cache_can_be_reset(tiny: Any) -> None:
    body = {"prompt": IDS, "max_tokens": 1, "cache_salt": "reset"}
    post(tiny, body)
    assert httpx.post(f"{tiny.url}/reset_prefix_cache", trust_env=False).json() == {"success": True}
    assert post(tiny, body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_cache_config_tells_blocks(tiny: Any) -> None:
    assert tiny.metric("vllm:cache_config_info", block_size="16", num_gpu_blocks="256") == 1


def test_kv_events_arrive(tiny: Any) -> None:
    context = zmq.Context()
    with context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.subscribe("kv-events")
        subscriber.connect(f"tcp://127.0.0.1:{tiny.events_port}")
        for attempt in count():
            # a subscription takes a moment, and what was sent before it is lost: ask anew until one is heard
            prompt = [(attempt * 37 + 13 * i) % 1000 + 10 for i in range(100)]
            post(tiny, {"prompt": prompt, "max_tokens": 1, "cache_salt": f"events-{attempt}"})
            if subscriber.poll(1000):
                break
            assert attempt < 30
        topic, sequence, payload = subscriber.recv_multipart()
    assert topic == b"kv-events"
    assert len(sequence) == 8
    stored = next(event for event in decode_batch(payload).events if isinstance(event, BlockStored))
    # 100 tokens: six full blocks, the first of them with the salt beside it
    assert list(stored.token_ids) == prompt[:96]
    assert len(stored.block_hashes) == 6
    assert stored.parent_block_hash is None
    assert stored.block_size == 16


def open_request(engine: Any, body: dict[str, Any], *, until: bytes) -> socket.socket:
    """Sends a request by hand and reads until `until` was answered."""
    address = urlsplit(engine.url)
    data = json.dumps({"model": "tiny-llama", **body}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=60)
    connection.sendall(head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data)
    seen = b""
    while until not in seen:
        seen += connection.recv(65536)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_sequence(slow: Any, stream: bool) -> None:
    aborted = slow.metric("vllm:request_success_total", finished_reason="abort")
    body = {"prompt": IDS, "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    # a stream is left in its middle, a plain request before its first byte
    connection = open_request(slow, body, until=b"data: " if stream else b"")
    slow.wait_metric("vllm:num_requests_running", 1)
    assert httpx.get(f"{slow.url}/load", trust_env=False).json() == {"server_load": 1}
    assert httpx.post(f"{slow.url}/reset_prefix_cache", trust_env=False).json() == {"success": False}
    connection.close()
    slow.wait_metric("vllm:num_requests_running", 0)
    slow.wait_metric("vllm:request_success_total", aborted + 1, finished_reason="abort")
    assert slow.metric("vllm:kv_cache_usage_perc") == 0
    assert httpx.get(f"{slow.url}/load", trust_env=False).json() == {"server_load": 0}


def test_the_loop_answers_while_the_engine_works(slow: Any) -> None:
    connection = open_request(
        slow, {"prompt": IDS, "max_tokens": 4000, "ignore_eos": True, "stream": True}, until=b"data: "
    )
    assert httpx.get(f"{slow.url}/health", trust_env=False).status_code == 200
    assert httpx.get(f"{slow.url}/ping", trust_env=False).status_code == 200
    assert post(slow, {"prompt": "hi"}, "/tokenize")["count"] > 0
    assert slow.metric("vllm:num_requests_running") == 1
    connection.close()
    slow.wait_metric("vllm:num_requests_running", 0)
