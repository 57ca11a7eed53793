"""A small HTTP server in front of engines, like a load balancer or an ingress: it spreads, it withholds."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle

import httpx

CHAT = "/v1/chat/completions"
_OF_ONE_HOP = ("connection", "content-length", "date", "host", "server", "transfer-encoding")


class _Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, engines: Sequence[str], withheld: Collection[str], client: httpx.Client) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.first, self.turns, self.lock = engines[0], cycle(engines), threading.Lock()
        self.withheld, self.client = withheld, client

    def engine_for(self, path: str) -> str:
        """Chats go to all in turn; the rest (health, models, metrics) to the first."""
        if path != CHAT:
            return self.first
        with self.lock:
            return next(self.turns)


class _Handler(BaseHTTPRequestHandler):
    server: _Front

    def do_GET(self) -> None:
        if self.path in self.server.withheld:
            self._answer(404, {}, b"no such path")
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        there = self.server.client.request(
            self.command,
            self.server.engine_for(self.path) + self.path,
            content=body,
            headers={k: v for k, v in self.headers.items() if k.lower() not in _OF_ONE_HOP},
        )
        kept = {k: v for k, v in there.headers.items() if k.lower() not in _OF_ONE_HOP}
        self._answer(there.status_code, kept, there.content)

    do_POST = do_GET  # noqa: N815 - the name that the base class looks for

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def front(*engines: str, withheld: Collection[str] = ()) -> Iterator[str]:
    """Its address. `withheld` are paths that it answers with 404."""
    with (
        httpx.Client(trust_env=False, timeout=90, headers={"accept-encoding": "identity"}) as client,
        _Front(engines, withheld, client) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
