"""What a router costs: CPU a request, CPU a streamed chunk, and what it adds to the first byte.

    make bench                     ours, and each peer that is installed, in turn, in the same run
    python -m benchmarks.wire --seconds 5 --only ours,nginx

The router runs alone on one core; four mock engines and the load generator share another. CPU is the
scheduler's own count of the router's processes (`/proc/PID/task/*/schedstat`), less what it uses idle: a slow
generator changes nothing about it. Latency is open loop at a low rate, against the same requests sent to an
engine directly. Every figure is the median over `--rounds` turns, and routers take turns within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import free_port, free_row
from benchmarks.wire.engine import MODEL
from benchmarks.wire.load import Result, http_request, run
from benchmarks.wire.routers import Router, installed_peers, missing_peers, ours

TOKENIZER = Path("tests/data/tokenizers/vllm-tiny")
ENGINES = 4
CHUNKS, INTERVAL = 100, 0.02


def pinned(core: int, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def cpu_seconds(pid: int) -> float:
    """Run time of the process group `pid` leads, all threads, in seconds."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getpgid(int(entry.name)) != pid:
                continue
            total += sum(int(t.read_text().split()[0]) for t in entry.glob("task/*/schedstat"))
        except (OSError, ProcessLookupError):
            continue
    return total / 1e9


@contextmanager
def started(command: list[str], core: int, port: int, log: Path, timeout: float = 60.0) -> Iterator[int]:
    process = pinned(core, command, log)
    try:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]}
        deadline = time.monotonic() + timeout
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[:4]} did not start: {log.read_text(errors='replace')[-600:]}")
            try:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                if httpx.post(url, json=body, trust_env=False, timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_WORDS = "the quick brown fox jumps over the lazy dog and looks at what the engine says about it"


def prompts(tokens: int, count: int, *, stream: bool) -> list[bytes]:
    """Chats of about `tokens` tokens in a common English text, over eight shared system prompts."""
    words = _WORDS.split()
    made = []
    for n in range(count):
        system = f"system {n % 8} " + " ".join(words[(n % 8 + i) % len(words)] for i in range(tokens // 3))
        user = f"user {n} " + " ".join(words[(n * 7 + i) % len(words)] for i in range(tokens // 6))
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": 16,
        }
        if stream:
            body["stream"] = True
        made.append(http_request("/v1/chat/completions", json.dumps(body).encode()))
    return made


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


class Bench:
    def __init__(self, seconds: float, engines: list[int], scratch: Path, core: int) -> None:
        self.seconds, self.engines, self.scratch, self.core = seconds, engines, scratch, core

    def measure(self, router: Router | None, port: int) -> dict[str, float]:
        """One turn of one router; None measures an engine directly."""
        if router is None:
            return self._all(port, None)
        with started(router.command, self.core, port, self.scratch / f"{router.name}.log") as pid:
            return self._all(port, pid)

    def _all(self, port: int, pid: int | None) -> dict[str, float]:
        figures: dict[str, float] = {}
        self._load(port, prompts(200, 64, stream=False), rate=100, seconds=1.0)  # warm-up
        idle = self._cpu_per_second(pid)
        for name, tokens in (("json_200", 200), ("json_8000", 8000)):
            rate = 300.0 if tokens == 200 else 40.0
            before = cpu_seconds(pid) if pid else 0.0
            began = time.monotonic()
            result = self._load(port, prompts(tokens, 512, stream=False), rate=rate, seconds=self.seconds)
            spent = (cpu_seconds(pid) - before if pid else 0.0) - idle * (time.monotonic() - began)
            done = max(1, len(result.total))
            figures[f"cpu_us_{name}"] = spent / done * 1e6
            figures[f"failed_{name}"] = result.failed
        before, began = (cpu_seconds(pid) if pid else 0.0), time.monotonic()
        result = self._load(port, prompts(200, 64, stream=True), rate=20, seconds=self.seconds)
        spent = (cpu_seconds(pid) - before if pid else 0.0) - idle * (time.monotonic() - began)
        figures["cpu_us_chunk"] = spent / max(1, len(result.total) * CHUNKS) * 1e6
        figures["failed_stream"] = result.failed
        for name, stream in (("json", False), ("stream", True)):
            for tokens in (200, 8000):
                low = self._load(port, prompts(tokens, 64, stream=stream), rate=15, seconds=self.seconds)
                figures[f"p50_ms_{name}_{tokens}"] = quantile(low.first_byte, 0.5) * 1e3
                figures[f"p99_ms_{name}_{tokens}"] = quantile(low.first_byte, 0.99) * 1e3
        return figures

    def _load(self, port: int, requests: list[bytes], *, rate: float, seconds: float) -> Result:
        return asyncio.run(run(port, requests, rate=rate, seconds=seconds))

    def _cpu_per_second(self, pid: int | None) -> float:
        if pid is None:
            return 0.0
        before, began = cpu_seconds(pid), time.monotonic()
        time.sleep(1.0)
        return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def median_rows(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    names = rounds[0].keys()
    return {
        name: {key: statistics.median(r[name][key] for r in rounds) for key in rounds[0][name]}
        for name in names
    }


def show(rows: dict[str, dict[str, float]], console: Console) -> str:
    direct = rows["direct"]
    header = ["router", "CPU µs, JSON 200", "CPU µs, JSON 8,000", "CPU µs a chunk"]
    header += ["added p50 / p99 ms, JSON 200", "added p50 / p99 ms, first byte 200", "first byte 8,000"]
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    table = Table(*header)
    for name, row in rows.items():
        if name == "direct":
            continue

        def added(key: str, row: dict[str, float] = row) -> str:
            return " / ".join(f"{row[f'{q}_ms_{key}'] - direct[f'{q}_ms_{key}']:.2f}" for q in ("p50", "p99"))

        cells = [
            name,
            f"{row['cpu_us_json_200']:.0f}",
            f"{row['cpu_us_json_8000']:.0f}",
            f"{row['cpu_us_chunk']:.1f}",
        ]
        cells += [added("json_200"), added("stream_200"), added("stream_8000")]
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    console.print(table)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="0,1", help="the router's, and the one of engines and load")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/wire.json"))
    args = parser.parse_args()
    console = Console(width=150)
    router_core, other_core = map(int, args.cores.split(","))
    os.sched_setaffinity(0, {other_core})
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        engines = [free_port() for _ in range(ENGINES)]
        # peers are told to export their metrics a few ports on
        port = free_row(5, Random())
        admin = port + 1
        routers = [
            ours("ours, bytes", engines, port, admin, "--no-access-log", "--tokenizer", f"{MODEL}=bytes"),
            ours(
                "ours, tokenising",
                engines,
                port,
                admin,
                "--no-access-log",
                "--tokenizer",
                f"{MODEL}={TOKENIZER}",
            ),
            ours("ours, access log", engines, port, admin, "--tokenizer", f"{MODEL}={TOKENIZER}"),
            *installed_peers(engines, port, scratch),
        ]
        console.print(f"not installed, so not measured: {', '.join(missing_peers(routers)) or 'none'}")
        wanted = set(filter(None, args.only.split(",")))
        routers = [r for r in routers if not wanted or any(r.name.startswith(w) for w in wanted)]
        bench = Bench(args.seconds, engines, scratch, router_core)
        mock = [sys.executable, "-m", "benchmarks.wire.engine", "--chunks", str(CHUNKS)]
        mock += ["--interval", str(INTERVAL), "--port"]
        mocks = [pinned(other_core, [*mock, str(engine)], scratch / "engines.log") for engine in engines]
        rounds: list[dict[str, dict[str, float]]] = []
        try:
            time.sleep(2.0)
            for n in range(args.rounds):
                rows = {"direct": bench.measure(None, engines[0])}
                for router in routers:
                    console.print(f"round {n + 1} of {args.rounds}: {router.name}")
                    try:
                        rows[router.name] = bench.measure(router, port)
                    except RuntimeError as error:
                        console.print(f"  left out: {error}")
                rounds.append(rows)
        finally:
            for process in mocks:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        common = set.intersection(*(set(r) for r in rounds))
        rows = median_rows([{k: r[k] for k in r if k in common} for r in rounds])
    markdown = show(rows, console)
    machine = {
        "machine": platform.machine(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "seconds": args.seconds, "rounds": args.rounds, "rows": rows}
    args.json.write_text(json.dumps(document, indent=1) + "\n")
    args.json.with_suffix(".md").write_text(markdown + "\n")
    console.print(f"written to {args.json}")
    return 0


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
