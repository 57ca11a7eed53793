"""What Python itself takes: a router that only forwards.

    python -m benchmarks.wire.bare --port 8080 --engine 9001 --engine 9002

Bare asyncio protocols on uvloop on both sides, connections to the engines that stay open, engines in turn. It
reads where a request ends and where an answer does, and nothing else: no routing, no checks, no records, no
timeouts, no bounds. What a gateway in Python takes above this is its own doing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import cast

import uvloop

from benchmarks.ending import in_one_line
from benchmarks.wire.framing import Answer, body_length


class Engines:
    """Connections to engines on this machine, by port; the engines take turns."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._idle: list[tuple[int, list[Upstream]]] = [(port, []) for port in ports]
        self._turn = 0
        self._opening: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, client: Client) -> None:
        port, idle = self._idle[self._turn]
        self._turn = (self._turn + 1) % len(self._idle)
        while idle:
            upstream = idle.pop()
            if not upstream.closed:
                upstream.send(request, client)
                return
        task = asyncio.create_task(self._open(port, idle, request, client))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def close(self) -> None:
        for _, idle in self._idle:
            for upstream in idle:
                upstream.close()

    @staticmethod
    async def _open(port: int, idle: list[Upstream], request: bytes, client: Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, upstream = await loop.create_connection(lambda: Upstream(idle), "127.0.0.1", port)
        except OSError:
            client.close()
        else:
            upstream.send(request, client)


class Upstream(asyncio.Protocol):
    """A connection to an engine, in `idle` between two answers."""

    def __init__(self, idle: list[Upstream]) -> None:
        self._idle = idle
        self._client: Client | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, client: Client) -> None:
        if client.closed:
            self._idle.append(self)
            return
        self._client, self._answer = client, Answer()
        client.upstream = self
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None:
            return
        client.transport.write(data)
        if self._answer.feed(data):
            self._client = client.upstream = None
            self._idle.append(self)
            client.answered()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._client is not None:
            self._client.close()

    def close(self) -> None:
        self._client = None
        self._transport.close()


class Client(asyncio.Protocol):
    """One request after the other; what comes before an answer has ended waits."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._pending = b""
        self._asked = self.closed = False
        self.upstream: Upstream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if not self._asked:
            self._next()

    def answered(self) -> None:
        self._asked = False
        if self._pending:
            self._next()

    def _next(self) -> None:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            return
        whole = end + 4 + (body_length(self._pending[:end].lower()) or 0)
        if len(self._pending) >= whole:
            request, self._pending = self._pending[:whole], self._pending[whole:]
            self._asked = True
            self._engines.send(request, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.upstream is not None:
            self.upstream.close()

    def close(self) -> None:
        self.transport.close()


async def _main(port: int, engines: Sequence[int]) -> None:
    pool = Engines(engines)
    server = await asyncio.get_running_loop().create_server(lambda: Client(pool), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


@in_one_line("it served until now")
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", type=int, action="append", required=True, help="a port; may be repeated")
    arguments = parser.parse_args()
    uvloop.run(_main(arguments.port, arguments.engine))


if __name__ == "__main__":
    main()
