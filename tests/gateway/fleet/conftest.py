"""A real HTTP server that gives the answers it was given: what the gateway asks engines in the background."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import pytest

Answers: TypeAlias = Mapping[str, tuple[int, bytes]]


class Engine(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = dict(answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Engine)
        status, body = self.server.answers.get(self.path, (404, b'{"detail":"Not Found"}'))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


Serve: TypeAlias = Callable[[Answers], Engine]


@contextmanager
def serving(answers: Answers) -> Iterator[Engine]:
    with Engine(answers) as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
            thread.join()


@pytest.fixture
def engine() -> Iterator[Serve]:
    """`engine(answers)` starts one; `answers` maps a path to (status, body) and may be changed later."""
    with ExitStack() as stack:
        yield lambda answers: stack.enter_context(serving(answers))


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, tuple[int, bytes]]]:
    """What real vLLM engines answered, by version: path → (status, body)."""
    data = json.loads((Path(__file__).parents[2] / "data" / "vllm" / "probe.json").read_text())
    return {
        version: {path: (answer["status"], answer["body"].encode()) for path, answer in answers.items()}
        for version, answers in data["answers"].items()
    }
