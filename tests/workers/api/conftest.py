"""One engine process for the tests of a module: starting it takes longer than most of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Served:
    """A running engine. `model` is the name it serves."""

    url: str
    events_port: int
    model: str = "tiny-llama"

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of `name` that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        values = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{") and all(part in line for part in wanted)
        ]
        assert values, f"no sample of {name} {labels}"
        return sum(values)

    def wait_metric(self, name: str, value: float, **labels: str) -> None:
        deadline = time.monotonic() + 60
        while self.metric(name, **labels) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name, **labels)}, not {value}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """`start_engine("--model", "tiny", …)`: served as ``tiny-llama`` with KV events; ends with the module."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> Served:
        log = tmp_path_factory.mktemp("engine") / "log"
        http_port, events_port = free_port(), free_port()
        command = [sys.executable, "-m", "workers", "serve", "--served-model-name", "tiny-llama"]
        command += ["--port", str(http_port), "--kv-events-port", str(events_port), "--threads", "1", *args]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        deadline = time.monotonic() + 60
        while "ready: " not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        return Served(f"http://127.0.0.1:{http_port}", events_port)

    yield start
    for process in started:
        process.terminate()
    for process in started:
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def tiny(start_engine: Callable[..., Served]) -> Served:
    """The tiny model that computes, with room for 512 tokens a sequence, and an adapter ``legal``."""
    size = ("--max-model-len", "512", "--num-blocks", "256")
    return start_engine("--model", "tiny", *size, "--seed", "7", "--adapter", "legal")
