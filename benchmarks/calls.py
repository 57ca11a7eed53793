"""Where the calls of a request go: how often Python is called for a JSON request and for a streamed chunk.

    make calls                                    by module
    python -m benchmarks.calls --by function      by function, the most called first

The real app behind its real listener answers over loopback sockets, from one mock engine in a process of its
own. Counts don't mind a busy machine, so they tell what a change to the path saves where times do not. Time
is CPU of the gateway's thread, kernel included, without the count: the least of `--rounds` rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import asked
from benchmarks.children import child
from benchmarks.ending import in_one_line
from benchmarks.fleet import free_port
from benchmarks.wire.bench import prompts
from benchmarks.wire.engine import MODEL
from gateway.api.listener import ListenerOptions, bind, make_listener
from gateway.app import build
from gateway.settings import Settings
from gateway.settled import settle_memory

SHORT, LONG = 40, 120
"""Chunks of two streams: what the longer takes more is what chunks take."""
INTERVAL = 0.003
"""Seconds between two chunks: long enough for each to come alone."""
_ROOTS = tuple(f"{Path(entry).resolve()}/" for entry in sys.path if entry)


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one request."""

    python: Mapping[CodeType, float]
    """Times that a function was called, or a coroutine gone on with."""
    c: float
    """Calls of functions that are not Python's."""
    cpu_s: float

    def less(self, other: Tally, parts: int) -> Tally:
        """What this one took more than `other`, as `parts` equal ones."""
        codes = {*self.python, *other.python}
        python = {code: (self.python.get(code, 0.0) - other.python.get(code, 0.0)) / parts for code in codes}
        return Tally(python, (self.c - other.c) / parts, (self.cpu_s - other.cpu_s) / parts)


class Counting:
    """A profile function for `sys.setprofile`."""

    def __init__(self) -> None:
        self.python: Counter[CodeType] = Counter()
        self.c = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.python[frame.f_code] += 1
        elif event == "c_call":
            self.c += 1


def by_function(tally: Tally) -> dict[str, float]:
    return {f"{_module(code)}:{code.co_qualname}": count for code, count in tally.python.items()}


def by_module(tally: Tally) -> dict[str, float]:
    found: Counter[str] = Counter()
    for code, count in tally.python.items():
        found[_module(code)] += count  # type: ignore[assignment]  # a Counter adds up any numbers
    return dict(found)


def _module(code: CodeType) -> str:
    """``gateway.api.serve``: the file's path below the longest entry of `sys.path` that it lies in."""
    root = max((root for root in _ROOTS if code.co_filename.startswith(root)), key=len, default="")
    return code.co_filename.removeprefix(root).removesuffix(".py").replace("/", ".")


@contextmanager
def engine(chunks: int) -> Iterator[int]:
    """A mock engine in a process of its own; its port."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.wire.engine", "--port", str(port)]
    with child([*command, "--chunks", str(chunks), "--interval", str(INTERVAL)]):
        _await_open(port)
        yield port


def _await_open(port: int, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@asynccontextmanager
async def gateway(engine_port: int) -> AsyncIterator[int]:
    """Ours, in this event loop, in front of that engine; its port."""
    given: dict[str, Any] = {"tokenizers": {MODEL: "bytes"}, "access_log": False}
    settings = Settings(workers=(f"http://127.0.0.1:{engine_port}",), **given)
    sock = bind("127.0.0.1", 0, "--port")
    async with build(settings) as app:
        listener = make_listener(app.public, ListenerOptions(app.security.bounds), None)
        serving = asyncio.create_task(listener.serve([sock]))
        while app.unready() is not None or not listener.started:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        settle_memory()
        try:
            yield sock.getsockname()[1]
        finally:
            listener.should_exit = True
            await serving


def ask(port: int, requests: list[bytes]) -> None:
    """One after the other over one connection; raises RuntimeError for an answer that is not good."""
    with closing(socket.create_connection(("127.0.0.1", port))) as client:
        for request in requests:
            client.sendall(request)
            answer = b""
            while not _whole(answer):
                read = client.recv(65536)
                if not read:
                    break
                answer += read
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(answer.decode(errors="replace"))


def _whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    at = head.find(b"content-length: ")
    if at < 0:
        return body.endswith(b"0\r\n\r\n")
    return bool(found) and len(body) >= int(head[at + 16 :].partition(b"\r\n")[0])


Serving = Callable[[int], AbstractAsyncContextManager[int]]
"""What stands in front of the engine at that port, in this event loop; its port."""


async def measure(chunks: int, requests: list[bytes], rounds: int, serving: Serving = gateway) -> Tally:
    """What each of `requests` takes there."""
    with engine(chunks) as engine_port:
        async with serving(engine_port) as port:
            await asyncio.to_thread(ask, port, requests)  # whatever is made once
            spent = []
            for _ in range(rounds):
                before = time.thread_time()
                await asyncio.to_thread(ask, port, requests)
                spent.append(time.thread_time() - before)
            counting = Counting()
            sys.setprofile(counting)
            await asyncio.to_thread(ask, port, requests)
            sys.setprofile(None)
    each = {code: count / len(requests) for code, count in counting.python.items()}
    return Tally(each, counting.c / len(requests), min(spent) / len(requests))


async def play(requests: int, rounds: int) -> tuple[Tally, Tally]:
    """A JSON request, and a chunk of a stream."""
    one = await measure(SHORT, prompts(200, requests, stream=False), rounds)
    streams = prompts(200, max(1, requests // 20), stream=True)
    short, long = [await measure(chunks, streams, rounds) for chunks in (SHORT, LONG)]
    return one, long.less(short, LONG - SHORT)


@in_one_line()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by", choices=("module", "function"), default="module")
    parser.add_argument("--requests", type=asked.count, default=200)
    parser.add_argument("--rounds", type=asked.count, default=5)
    parser.add_argument("--least", type=asked.amount, default=0.05, help="rows with fewer calls are left out")
    args = parser.parse_args(argv)
    one, chunk = uvloop.run(play(args.requests, args.rounds))
    named = by_module if args.by == "module" else by_function
    rows, chunks = named(one), named(chunk)
    table = Table(args.by, "a JSON request", "a chunk")
    for name in sorted({*rows, *chunks}, key=lambda name: -rows.get(name, 0.0)):
        counts = rows.get(name, 0.0), chunks.get(name, 0.0)
        if max(counts) >= args.least:
            table.add_row(name, *(f"{count:.1f}" for count in counts))
    table.add_section()
    table.add_row("all Python calls", *(f"{sum(t.python.values()):.1f}" for t in (one, chunk)))
    table.add_row("calls into C", *(f"{t.c:.1f}" for t in (one, chunk)))
    table.add_row("CPU µs", *(f"{1e6 * t.cpu_s:.1f}" for t in (one, chunk)))
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
