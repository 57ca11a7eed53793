"""Fuzz: the admin port's OpenAPI document through schemathesis, the public port's bytes through Hypothesis.

No 5xx of our own making, no crash, no trace in the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Spawn
from tests.heavy.fuzz_rig import FIELDS, JSON, PATHS, Door, status_of, talk

pytestmark = pytest.mark.heavy

EXAMPLES = 40


@pytest.fixture
def door(spawn: Spawn, free_port: Callable[[], int]) -> Iterator[Door]:
    """Serves a model whose worker is not there: what is understood ends in 503, and nothing else may."""
    port, admin = free_port(), free_port()
    process = spawn(
        "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin),
        "--worker", "http://127.0.0.1:1,model=m", "--no-access-log",
        "--head-timeout", "1", "--body-timeout", "1",
    )  # fmt: skip
    process.wait_http(f"http://127.0.0.1:{port}/health", timeout=100)
    made = Door(process, port, f"http://127.0.0.1:{admin}")
    yield made
    made.assert_sound()


@pytest.mark.timeout(900)
def test_every_operation_of_the_admin_port(door: Door) -> None:
    schema = schemathesis.openapi.from_url(f"{door.admin}/openapi.json")
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck),
            database=None, phases=[Phase.generate],
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def probe(case: Any) -> None:
            nonlocal tried
            # how many seconds the doctor is to watch: it does
            if isinstance(window := (case.query or {}).get("window"), int | float) and window > 0.1:
                case.query["window"] = 0.1
            response = case.call(timeout=60)
            tried += 1
            # not ready is what a door without workers says of itself
            assert response.status_code < 500 or case.path == "/ready", (case.path, response.text)

        probe()
    assert tried >= EXAMPLES


@pytest.mark.timeout(900)
def test_bodies_of_any_shape(door: Door) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(path=PATHS, fields=st.dictionaries(FIELDS, JSON, max_size=6))
    def probe(path: str, fields: dict[str, object]) -> None:
        body = json.dumps({"model": "m", **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        status = status_of(talk(door.port, head.encode() + b"content-type: application/json\r\n\r\n" + body))
        assert status in (400, 404, 405, 503), (path, fields, status)

    probe()


HEADS = st.sampled_from(
    (
        b"content-length: 5", b"content-length: 0", b"content-length: -1", b"content-length: 5, 5",
        b"content-length: 99999999999999999999", b"transfer-encoding: chunked", b"transfer-encoding: gzip",
        b"transfer-encoding: chunked, identity", b"connection: close", b"connection: keep-alive, x",
        b"expect: 100-continue", b"content-encoding: gzip", b"content-type: application/json", b"x:y",
        b" x: y",
        b"x\x00: y", b"upgrade: h2c", b"host: y", b"x-request-id: \xff", b"x-priority: 9" * 20, b":", b"",
    )
)  # fmt: skip


@pytest.mark.timeout(900)
def test_bytes_of_any_kind(door: Door) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        method=st.sampled_from((b"POST", b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"")),
        path=PATHS
        | st.sampled_from(("*", "//", "/v1/audio/../x", "/%00", "/v1/models/%ff", "http://h/v1/models")),
        version=st.sampled_from((b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"")),
        heads=st.lists(HEADS, max_size=6),
        body=st.binary(max_size=60)
        | st.sampled_from((b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"{}", b"-1\r\n\r\n")),
    )
    def probe(method: bytes, path: str, version: bytes, heads: list[bytes], body: bytes) -> None:
        data = b"\r\n".join([b" ".join((method, path.encode(), version)), b"host: x", *heads, b"", body])
        status = status_of(talk(door.port, data))
        assert status < 500 or status in (501, 503, 505), (data, status)  # nobody there, another HTTP

    probe()


@pytest.mark.timeout(900)
def test_noise(door: Door) -> None:
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.binary(max_size=400))
    def probe(data: bytes) -> None:
        assert status_of(talk(door.port, data)) in (0, 400, 404, 405, 408)

    probe()
