"""One router at a time, alone on its core: what it costs and what it adds."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.wire.engine import MODEL
from benchmarks.wire.load import Result, http_request, run, saturate
from benchmarks.wire.processes import cpu_seconds, running
from benchmarks.wire.routers import Part, Ports, Router

ENGINES = 4
CHUNKS, INTERVAL = 100, 0.02
HALF_S = 20.0
"""Seconds at half load, at least: of a hundred requests a 99th percentile is the luck of one."""
CONNECTIONS = 32
"""That ask again at once, for the throughput."""
_WORDS = "the quick brown fox jumps over the lazy dog and looks at what the engine says about it"
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests whose CPU is a figure of its own."""

    name: str
    tokens: int
    rate: float
    prompts: int
    """Different ones."""
    stream: bool = False

    @property
    def units(self) -> int:
        """What CPU is told by: chunks, or the request itself."""
        return CHUNKS if self.stream else 1


A_CHUNK = Cost("chunk", 200, 20.0, 64, stream=True)
JSON_200, JSON_8000 = Cost("json_200", 200, 300.0, 512), Cost("json_8000", 8000, 40.0, 512)


@dataclass(frozen=True, slots=True)
class Spent:
    us: float
    """CPU of each."""
    answered: int
    failed: int


def prompts(
    tokens: int, count: int, *, stream: bool, headers: dict[str, str] | None = None, first: int = 0
) -> list[bytes]:
    """Chats of about `tokens` tokens in a common English text, over eight shared system prompts; others from
    each `first` on."""
    words = _WORDS.split()
    made = []
    for n in range(first, first + count):
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


@contextmanager
def mock_engines(ports: Ports, core: str, scratch: Path) -> Iterator[None]:
    """On `core`, where this process, which makes the load, goes too."""
    os.sched_setaffinity(0, {int(core)})
    mock = [sys.executable, "-m", "benchmarks.wire.engine", "--chunks", str(CHUNKS)]
    mock += ["--interval", str(INTERVAL), "--port"]
    with ExitStack() as stack:
        for engine in ports.engines:
            stack.enter_context(running(core, [*mock, str(engine)], scratch / "engines.log"))
        time.sleep(2.0)
        yield


class Bench:
    """`cores`: the router's, and the one of engines and load."""

    def __init__(self, seconds: float, ports: Ports, scratch: Path, cores: tuple[str, str]) -> None:
        self.seconds, self.ports, self.scratch = seconds, ports, scratch
        self.router_cores, self.other_core = cores
        self._log = scratch / "router.log"

    def measure(self, router: Router | None, known: Figures | None = None) -> Figures:
        """One turn of one router, added to what another part of it gave; None measures an engine directly.
        Raises RuntimeError where it does not start."""
        if router is None:
            return Turn(self.ports.engines[0], None, {}, self.seconds).measure(tuple(Part), {})
        with self.started(router) as turn:
            return turn.measure(router.parts, known or {})

    @contextmanager
    def started(self, router: Router) -> Iterator[Turn]:
        """It runs and answers. Raises RuntimeError where it does not start."""
        self._log.write_bytes(b"")
        with ExitStack() as stack:
            for command in router.beside:
                stack.enter_context(running(self.other_core, command, self.scratch / "beside.log"))
            cores = router.cores or self.router_cores
            process = stack.enter_context(running(cores, router.command, self._log))
            self._await_answer(router, process)
            self._await_blocks(router)
            yield Turn(self.ports.public, process.pid, dict(router.headers), self.seconds)

    def said(self) -> str:
        """The last words of what was started last."""
        return self._log.read_text(errors="replace")[-600:]

    def _await_answer(self, router: Router, process: subprocess.Popen[bytes], timeout: float = 60.0) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
        url = f"http://127.0.0.1:{self.ports.public}/v1/chat/completions"
        deadline = time.monotonic() + timeout
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{router.name} did not start: {self.said()}")
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


class Turn:
    """What is asked of one router, or of an engine where `pid` is None."""

    def __init__(self, port: int, pid: int | None, headers: dict[str, str], seconds: float) -> None:
        self._port, self._pid, self._headers, self._seconds = port, pid, headers, seconds

    def measure(self, parts: tuple[Part, ...], known: Figures) -> Figures:
        self.warm_up()
        figures = {**known, "idle": self.resting()}
        steps = {
            Part.CHUNK: self._chunk,
            Part.JSON: self._json,
            Part.FIRST: self._first,
            Part.RATE: self._rate,
        }
        for part in parts:
            steps[part](figures)
        return figures

    def warm_up(self) -> None:
        self._load(200, rate=100, seconds=1.0)

    def resting(self) -> float:
        """CPU seconds a second without requests."""
        before, began = self._cpu(), time.monotonic()
        time.sleep(2.0)
        return (self._cpu() - before) / (time.monotonic() - began)

    def cost(self, asked: Cost, idle: float, *, first: int = 0) -> Spent:
        """What requests of a kind take beyond `idle`, what resting takes; their prompts begin at `first`."""
        before, began = self._cpu(), time.monotonic()
        result = self._load(
            asked.tokens,
            rate=asked.rate,
            seconds=self._seconds,
            count=asked.prompts,
            stream=asked.stream,
            first=first,
        )
        spent = self._cpu() - before - idle * (time.monotonic() - began)
        answered = len(result.total)
        return Spent(spent / max(1, answered * asked.units) * 1e6, answered, result.failed)

    def _chunk(self, figures: Figures) -> None:
        self._told(figures, A_CHUNK, "failed_stream")

    def _json(self, figures: Figures) -> None:
        for asked in (JSON_200, JSON_8000):
            self._told(figures, asked, f"failed_{asked.name}")
        self._low(figures, "json", stream=False)

    def _told(self, figures: Figures, asked: Cost, failed: str) -> None:
        spent = self.cost(asked, figures["idle"])
        figures[f"cpu_us_{asked.name}"] = spent.us
        figures[failed] = spent.failed

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

    def _load(
        self,
        tokens: int,
        *,
        rate: float,
        seconds: float,
        count: int = 64,
        stream: bool = False,
        first: int = 0,
    ) -> Result:
        made = prompts(tokens, count, stream=stream, headers=self._headers, first=first)
        return asyncio.run(run(self._port, made, rate=rate, seconds=seconds))

    def _cpu(self) -> float:
        return 0.0 if self._pid is None else cpu_seconds(self._pid)


def _latency(figures: Figures, name: str, result: Result) -> None:
    figures[f"p50_ms_{name}"] = quantile(result.first_byte, 0.5) * 1e3
    figures[f"p99_ms_{name}"] = quantile(result.first_byte, 0.99) * 1e3
