"""The doctor and the gateway in front of an engine that tells of itself as SGLang does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.sick import evidence, examine, finding, gateway, ids

pytestmark = pytest.mark.timeout(300)

DATA = ROOT / "tests" / "data" / "sglang"


BEGIN, END = ((DATA / f"metrics_v0523_{when}.txt").read_bytes() for when in ("begin", "end"))


class _Engine(ThreadingHTTPServer):
    daemon_threads = True
    looked = False

    def metrics(self, asker: str) -> bytes:
        """The doctor's first look is the one before; the gateway's own looks do not count."""
        if "httpx" not in asker:
            return BEGIN
        text = END if self.looked else BEGIN
        self.looked = True
        return text


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Engine)
        status, body = 200, b""
        if self.path == "/v1/models":
            body = json.dumps({"data": [{"id": "qwen", "object": "model", "owned_by": "sglang"}]}).encode()
        elif self.path == "/metrics":
            body = self.server.metrics(self.headers.get("user-agent", ""))
        elif self.path != "/health":
            status = 404
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def sglang() -> Iterator[str]:
    with _Engine(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_it_is_known_and_examined_like_any_other(
    tmp_path: Path, free_port: Callable[[], int], sglang: str
) -> None:
    with gateway(tmp_path, [sglang], free_port) as fleet:
        (row,) = fleet.workers()
        assert (row["state"], row["model"]) == ("ready", "qwen")
        assert (row["block_size"], row["capacity_blocks"]) == (16, 512)
        examined = examine(fleet.admin)
    assert ids(examined) == {"kv-contention", "events-off"}
    found = finding(examined, "kv-contention")
    assert (evidence(found, "preemptions"), found["subject"]) == (6, sglang)
    assert "--max-running-requests" in found["remedy"][0]
