"""Steady traffic from a process of its own: arrivals come at random and do not wait for answers.

    python -m tests.heavy.steady OUT --group 8001,8002 --group 8003 [--rate 30] [--seed 1]

Each group is what a load balancer would send to: its gateways in turn, the next one where one does not accept
connections. Every gateway of every group gets `rate` requests a second, mixed into one stream. SIGTERM ends
it after the answers that are under way. OUT has a line a request: when it was sent (Unix time), seconds until
all of the answer was there, status (0 where the connection broke), group, port, worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypeAlias

from tests.conftest import ROOT

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RATE = 30.0
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: "


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    seconds: float
    status: int
    group: int
    port: int
    worker: str


# what the process does


def bodies(rng: random.Random) -> list[bytes]:
    """Prompts of 120 tokens that share their first 96 with a quarter of the others."""
    roots = [[rng.randrange(100, 1000) for _ in range(96)] for _ in range(4)]
    prompts = [rng.choice(roots) + [rng.randrange(100, 1000) for _ in range(24)] for _ in range(2000)]
    return [json.dumps({"model": "sim", "prompt": prompt, "max_tokens": 2}).encode() for prompt in prompts]


class Client:
    def __init__(self, groups: Sequence[Sequence[int]], out: TextIO) -> None:
        self._groups = groups
        self._out = out
        self._idle: dict[int, list[Connection]] = {port: [] for group in groups for port in group}
        self._turns = [0] * len(groups)

    async def send(self, group: int, body: bytes) -> None:
        ports = self._groups[group]
        turn = self._turns[group] = self._turns[group] + 1
        for attempt in range(len(ports)):
            port = ports[(turn + attempt) % len(ports)]
            at, began = time.time(), time.perf_counter()
            try:
                connection = await self._connection(port)
            except OSError:
                continue
            status, worker = await self._ask(port, connection, body)
            took = time.perf_counter() - began
            print(f"{at:.4f} {took:.5f} {status} {group} {port} {worker}", file=self._out, flush=True)
            return
        print(f"{at:.4f} 0 -1 {group} {port} ", file=self._out, flush=True)

    async def _connection(self, port: int) -> Connection:
        idle = self._idle[port]
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", port)

    async def _ask(self, port: int, connection: Connection, body: bytes) -> tuple[int, str]:
        reader, writer = connection
        head = HEAD + str(len(body))
        try:
            writer.write(head.encode() + b"\r\n\r\n" + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return 0, ""
        self._idle[port].append(connection)
        return int(lines[0].split()[1]), headers.get("x-gateway-worker", "")


async def run(groups: Sequence[Sequence[int]], out: TextIO, rate: float, seed: int) -> None:
    rng, client = random.Random(seed), Client(groups, out)
    prompts, stop = bodies(rng), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    turns = [number for number, group in enumerate(groups) for _ in group]
    open_ones: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    while not stop.is_set():
        # to all alike and in random order, so that no group comes behind another
        rng.shuffle(turns)
        for group in turns:
            due += rng.expovariate(rate * len(turns))
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(client.send(group, rng.choice(prompts)))
            open_ones.add(task)
            task.add_done_callback(open_ones.discard)
        # a generator that was held up does not make up for it: that would be a burst
        due = max(due, time.monotonic() - 0.1)
    await asyncio.gather(*open_ones)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--group", action="append", required=True)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    groups = [[int(port) for port in group.split(",")] for group in options.group]
    with options.out.open("w") as out:
        asyncio.run(run(groups, out, options.rate, options.seed))


# what a test sees of it


@dataclass
class Steady:
    process: subprocess.Popen[bytes]
    path: Path
    _samples: list[Sample] = field(default_factory=list)
    _read: int = 0

    def between(self, begin: float, end: float, group: int) -> list[Sample]:
        """Those of one group that were sent then and have ended by now."""
        return [s for s in self.samples() if begin <= s.at < end and s.group == group]

    def samples(self) -> list[Sample]:
        with self.path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it is being written
                at, seconds, status, group, port, *worker = line.decode().split()
                self._samples.append(
                    Sample(float(at), float(seconds), int(status), int(group), int(port), "".join(worker))
                )
                self._read += len(line)
        return self._samples

    def stop(self) -> None:
        """Returns when no request is under way any more."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


@contextmanager
def steady(path: Path, groups: Sequence[Sequence[int]], rate: float = RATE) -> Iterator[Steady]:
    named = [part for group in groups for part in ("--group", ",".join(map(str, group)))]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.heavy.steady", str(path), "--rate", str(rate), *named],
        cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not path.exists():
            assert process.poll() is None, "the traffic did not begin"
            time.sleep(0.02)
        yield Steady(process, path)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
