"""One router at a time, alone on its core: what it costs and what it adds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.wire.engine import MODEL
from benchmarks.wire.load import Result, http_request, run, saturate
from benchmarks.wire.routers import Part, Ports, Router

CHUNKS, INTERVAL = 100, 0.02
HALF_S = 20.0
"""Seconds at half load, at least: of a hundred requests a 99th percentile is the luck of one."""
CONNECTIONS = 32
"""That ask again at once, for the throughput."""
_WORDS = "the quick brown fox jumps over the lazy dog and looks at what the engine says about it"
Figures = dict[str, float]


def prompts(tokens: int, count: int, *, stream: bool, headers: dict[str, str] | None = None) -> list[bytes]:
    """Chats of about `tokens` tokens in a common English text, over eight shared system prompts."""
    words = _WORDS.split()
    made = []
    for n in range(count):
        system = f"system {n % 8} " + " ".join(words[(n % 8 + i) % len(words)] for i in range(tokens // 3))
        user = f"user {n} " + " ".join(words[(n * 7 + i) % len(words)] for i in range(tokens // 6))
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": CHUNKS if stream else 16,
        }
        if stream:
            body["stream"] = True
        made.append(http_request("/v1/chat/completions", json.dumps(body).encode(), headers))
    return made


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def pinned(cores: str, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            ["taskset", "-c", cores, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def running(cores: str, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = pinned(cores, command, log)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            continue
        return


def cpu_seconds(pid: int) -> float:
    """Run time of process `pid` and all that came from it, all threads, in seconds."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:  # the name before them, in brackets, may hold anything
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (OSError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
    total = 0
    for own in parents:
        above: int | None = own
        while above is not None and above != pid:
            above = parents.get(above)
        if above == pid:
            try:
                tasks = Path(f"/proc/{own}/task").glob("*/schedstat")
                total += sum(int(task.read_text().split()[0]) for task in tasks)
            except (OSError, ProcessLookupError):
                continue
    return total / 1e9


class Bench:
    """`cores`: the router's, and the one of engines and load."""

    def __init__(self, seconds: float, ports: Ports, scratch: Path, cores: tuple[str, str]) -> None:
        self.seconds, self.ports, self.scratch = seconds, ports, scratch
        self.router_cores, self.other_core = cores

    def measure(self, router: Router | None, known: Figures | None = None) -> Figures:
        """One turn of one router, added to what another part of it gave; None measures an engine directly.
        Raises RuntimeError where it does not start."""
        if router is None:
            return _Turn(self.ports.engines[0], None, {}, self.seconds).measure(tuple(Part), {})
        log = self.scratch / "router.log"
        log.write_bytes(b"")
        with ExitStack() as stack:
            for command in router.beside:
                stack.enter_context(running(self.other_core, command, self.scratch / "beside.log"))
            cores = router.cores or self.router_cores
            process = stack.enter_context(running(cores, router.command, log))
            self._await_answer(router, process, log)
            self._await_blocks(router)
            turn = _Turn(self.ports.public, process.pid, dict(router.headers), self.seconds)
            return turn.measure(router.parts, known or {})

    def _await_answer(
        self, router: Router, process: subprocess.Popen[bytes], log: Path, timeout: float = 60.0
    ) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
        url = f"http://127.0.0.1:{self.ports.public}/v1/chat/completions"
        deadline = time.monotonic() + timeout
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-600:]
                raise RuntimeError(f"{router.name} did not start: {said}")
            try:
                answer = httpx.post(url, json=body, headers=router.headers, trust_env=False, timeout=5)
                if answer.status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)

    def _await_blocks(self, router: Router, timeout: float = 120.0) -> None:
        """The engines have told of all that they begin with."""
        deadline = time.monotonic() + timeout
        while router.blocks:
            text = httpx.get(f"http://127.0.0.1:{self.ports.admin}/metrics", trust_env=False).text
            held = next(n for n in text.splitlines() if n.startswith("gateway_index_distinct_blocks "))
            # each engine tells of whole runs, so of a few blocks less
            if float(held.split()[1]) >= 0.9995 * router.blocks:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{router.name}: {held} after {timeout:g} s")
            time.sleep(0.5)


class _Turn:
    """What is asked of one router, or of an engine where `pid` is None."""

    def __init__(self, port: int, pid: int | None, headers: dict[str, str], seconds: float) -> None:
        self._port, self._pid, self._headers, self._seconds = port, pid, headers, seconds

    def measure(self, parts: tuple[Part, ...], known: Figures) -> Figures:
        self._load(200, rate=100, seconds=1.0)  # warm-up
        figures = {**known, "idle": 0.0}
        figures["idle"] = self._resting()
        steps = {
            Part.CHUNK: self._chunk,
            Part.JSON: self._json,
            Part.FIRST: self._first,
            Part.RATE: self._rate,
        }
        for part in parts:
            steps[part](figures)
        return figures

    def _chunk(self, figures: Figures) -> None:
        spent, result = self._spent(figures["idle"], 200, 64, 20, stream=True)
        figures["cpu_us_chunk"] = spent / max(1, len(result.total) * CHUNKS) * 1e6
        figures["failed_stream"] = result.failed

    def _json(self, figures: Figures) -> None:
        for tokens, rate in ((200, 300.0), (8000, 40.0)):
            spent, result = self._spent(figures["idle"], tokens, 512, rate)
            figures[f"cpu_us_json_{tokens}"] = spent / max(1, len(result.total)) * 1e6
            figures[f"failed_json_{tokens}"] = result.failed
        self._low(figures, "json", stream=False)

    def _first(self, figures: Figures) -> None:
        self._low(figures, "stream", stream=True)
        seconds = max(self._seconds, HALF_S)
        half = self._load(8000, rate=self._half(figures), seconds=seconds, count=512, stream=True)
        _latency(figures, "half_8000", half)
        figures["failed_half"] = half.failed

    def _rate(self, figures: Figures) -> None:
        made = prompts(200, 512, stream=False, headers=self._headers)
        for name, fresh in (("per_second", False), ("fresh_per_second", True)):
            asking = saturate(self._port, made, connections=CONNECTIONS, seconds=self._seconds, fresh=fresh)
            figures[name] = asyncio.run(asking)

    def _low(self, figures: Figures, name: str, *, stream: bool) -> None:
        for tokens in (200, 8000):
            low = self._load(tokens, rate=15, seconds=self._seconds, count=64, stream=stream)
            _latency(figures, f"{name}_{tokens}", low)

    @staticmethod
    def _half(figures: Figures) -> float:
        """The rate of 8,000-token streams that keeps half of its core busy; at most 40 a second."""
        each = (figures["cpu_us_json_8000"] + CHUNKS * figures["cpu_us_chunk"]) / 1e6
        return min(40.0, 0.5 / each) if each > 0 else 40.0

    def _spent(
        self, idle: float, tokens: int, count: int, rate: float, *, stream: bool = False
    ) -> tuple[float, Result]:
        """CPU seconds beyond what resting takes, and how the requests went."""
        before, began = self._cpu(), time.monotonic()
        result = self._load(tokens, rate=rate, seconds=self._seconds, count=count, stream=stream)
        return self._cpu() - before - idle * (time.monotonic() - began), result

    def _load(
        self, tokens: int, *, rate: float, seconds: float, count: int = 64, stream: bool = False
    ) -> Result:
        made = prompts(tokens, count, stream=stream, headers=self._headers)
        return asyncio.run(run(self._port, made, rate=rate, seconds=seconds))

    def _resting(self) -> float:
        """CPU seconds a second without requests."""
        before, began = self._cpu(), time.monotonic()
        time.sleep(2.0)
        return (self._cpu() - before) / (time.monotonic() - began)

    def _cpu(self) -> float:
        return 0.0 if self._pid is None else cpu_seconds(self._pid)


def _latency(figures: Figures, name: str, result: Result) -> None:
    figures[f"p50_ms_{name}"] = quantile(result.first_byte, 0.5) * 1e3
    figures[f"p99_ms_{name}"] = quantile(result.first_byte, 0.99) * 1e3
