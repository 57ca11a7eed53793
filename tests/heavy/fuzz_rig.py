"""What the fuzz tests share: a gateway in a process of its own, raw bytes to it, and shapes of requests."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import httpx
from hypothesis import strategies as st

from tests.conftest import Process


@dataclass
class Door:
    process: Process
    port: int
    admin: str

    def assert_sound(self) -> None:
        """It runs, has logged no fault of its own, serves on, and nothing is left in flight."""
        assert self.process.popen.poll() is None, self.process.output()
        log = self.process.output()
        for trouble in ("Traceback", "never retrieved", "internal error"):
            assert trouble not in log, log[-4000:]
        assert httpx.get(f"http://127.0.0.1:{self.port}/health", trust_env=False).status_code == 200
        deadline = time.monotonic() + 30
        while (left := self._in_flight()) != 0:
            assert time.monotonic() < deadline, f"{left} requests are still in flight"
            time.sleep(0.05)

    def _in_flight(self) -> int:
        rows = httpx.get(f"{self.admin}/admin/workers", trust_env=False).json()["workers"]
        return sum(int(row["load"]["requests"]) for row in rows)


def talk(port: int, data: bytes, *, stays: bool = False) -> bytes:
    """All that comes back for these bytes. Who does not stay closes its sending side at once, and counts as
    gone; who stays is given an answer, and must have asked for the connection to be closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        try:
            sock.sendall(data)
            if not stays:
                sock.shutdown(socket.SHUT_WR)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
        except ConnectionError:
            return b""
        return b"".join(parts)


def status_of(answer: bytes) -> int:
    """0 where there is none."""
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def post(path: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """A well-framed request on a connection that its answer ends."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", "connection: close"]
    return "\r\n".join([*lines, f"content-type: {kind}", *headers, "", ""]).encode() + body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    (
        "messages", "prompt", "input", "tools", "stream", "stream_options", "max_tokens", "system",
        "chat_template_kwargs", "cache_salt", "truncate_prompt_tokens", "vllm_xargs", "kv_transfer_params",
        "service_tier", "user", "prompt_cache_key", "n", "tool_choice", "reasoning", "thinking",
    )
)  # fmt: skip
PATHS = st.sampled_from(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
     "/v1/messages/count_tokens", "/tokenize", "/v1/audio/transcriptions", "/v1/models", "/v1/responses/x",
     "/v1/responses/x/cancel", "/x")
)  # fmt: skip
