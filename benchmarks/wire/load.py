"""An open-loop load generator on bare asyncio protocols: arrivals do not wait for answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from benchmarks.wire.framing import Answer


@dataclass(slots=True)
class Result:
    """Times in seconds from the arrival that was due, so that a late generator can't hide a queue."""

    first_byte: list[float] = field(default_factory=list)
    """Of the body: a head alone, which some send before their engine has spoken, tells a client nothing."""
    total: list[float] = field(default_factory=list)
    failed: int = 0
    late_s: float = 0.0
    """The longest that an arrival was sent after it was due: what the generator itself adds."""


class _Exchange(asyncio.Protocol):
    """One connection, reused; `done` is set when an answer is whole."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> asyncio.Future[bool]:
        self.first: float | None = None
        self._answer = Answer()
        self.done: asyncio.Future[bool] = self._loop.create_future()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        whole = self._answer.feed(data)
        if self.first is None and (whole or self._answer.begun):
            self.first = self._loop.time()
        if whole:
            self._finish(self._answer.ok)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._finish(False)

    def _finish(self, ok: bool) -> None:
        if hasattr(self, "done") and not self.done.done():
            self.done.set_result(ok)


async def run(
    port: int, requests: Sequence[bytes], *, rate: float, seconds: float, seed: int = 1, timeout: float = 60.0
) -> Result:
    """Poisson arrivals at `rate` a second for `seconds`; `requests` are whole HTTP requests, in turn."""
    rng, loop, result = random.Random(seed), asyncio.get_running_loop(), Result()
    idle: list[_Exchange] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(request: bytes, due: float) -> None:
        try:
            while idle and idle[-1].closed:
                idle.pop()
            if idle:
                connection = idle.pop()
            else:
                _, connection = await loop.create_connection(_Exchange, "127.0.0.1", port)
            async with asyncio.timeout(timeout):
                ok = await connection.send(request)
        except (OSError, TimeoutError):
            result.failed += 1
            return
        if not ok or connection.first is None:
            result.failed += 1
            return
        result.first_byte.append(connection.first - due)
        result.total.append(loop.time() - due)
        if not connection.closed:
            idle.append(connection)

    due, end, n = loop.time(), loop.time() + seconds, 0
    while due < end:
        wait = due - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        result.late_s = max(result.late_s, loop.time() - due)
        task = asyncio.create_task(one(requests[n % len(requests)], due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        n += 1
        due += rng.expovariate(rate)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.transport.close()
    return result


async def saturate(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float, fresh: bool = False
) -> float:
    """Answers a second where each of `connections` asks again as soon as it has its answer; with `fresh` each
    time over a connection of its own."""
    loop, done = asyncio.get_running_loop(), 0
    end = loop.time() + seconds

    async def ask(first: int) -> None:
        nonlocal done
        _, connection = await loop.create_connection(_Exchange, "127.0.0.1", port)
        n = first
        while loop.time() < end and not connection.closed:
            if await connection.send(requests[n % len(requests)]):
                done += 1
            n += connections
            if fresh:
                connection.transport.close()
                _, connection = await loop.create_connection(_Exchange, "127.0.0.1", port)
        connection.transport.close()

    began = loop.time()
    await asyncio.gather(*(ask(n) for n in range(connections)))
    return done / (loop.time() - began)


def http_request(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "host: bench",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
