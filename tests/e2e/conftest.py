"""Whole fleets as users start them: `prefix-gateway up` in a process group of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.fleet.engine_metrics import samples
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Fleet:
    """A running gateway and its workers."""

    process: subprocess.Popen[bytes]
    url: str
    admin: str
    run_dir: Path
    log: Path

    @property
    def gateway_log(self) -> Path:
        """What the gateway itself logs, one JSON object a line."""
        (found,) = self.run_dir.glob("gateway-*.log")
        return found

    def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/admin/workers")["workers"]
        return rows

    def get(self, path: str) -> Any:
        return httpx.get(self.admin + path, trust_env=False, timeout=10).raise_for_status().json()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry `labels`."""
        text = httpx.get(self.admin + "/metrics", trust_env=False, timeout=10).raise_for_status().text
        return sum(s.value for s in samples(text, [name]) if labels.items() <= s.labels.items())

    def settle(self, quiet: float = 0.1, timeout: float = 20.0) -> None:
        """Until no KV event was applied for `quiet` seconds."""
        deadline = time.monotonic() + timeout

        def seen() -> list[object]:
            return [(w["id"], (w["events"] or {}).get("next_seq")) for w in self.workers()]

        last, since = seen(), time.monotonic()
        while time.monotonic() - since < quiet:
            assert time.monotonic() < deadline, "events did not settle"
            time.sleep(0.01)
            if (now := seen()) != last:
                last, since = now, time.monotonic()

    def output(self) -> str:
        logs = [self.log, *sorted(self.run_dir.glob("*.log"))]
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-4000:]}" for p in logs if p.exists())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def wait_until(condition: Callable[[], bool], timeout: float = 30.0, what: str = "condition") -> None:
    deadline = time.monotonic() + timeout
    pause = 0.02
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout} s"
        time.sleep(pause)
        # asking must not take the cores from what it waits for
        pause = min(0.1, pause * 1.2)


@contextmanager
def start_fleet(
    run_dir: Path, *, model: str = "tiny", workers: int = 2, args: Sequence[str] = ()
) -> Iterator[Fleet]:
    run_dir.mkdir(parents=True, exist_ok=True)
    # its workers get ports above its own
    port, admin, log = free_port(room=200), free_port(), run_dir / "up.out"
    command = [sys.executable, "-m", "gateway", "up", "--model", model, "--workers", str(workers)]
    command += ["--port", str(port), "--admin-port", str(admin), "--run-dir", str(run_dir), *args]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    fleet = Fleet(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", run_dir, log)

    def ready() -> bool:
        assert process.poll() is None, f"up ended with {process.returncode}:\n{fleet.output()}"
        try:
            return httpx.get(fleet.url + "/ready", trust_env=False, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(ready, 100, "a ready fleet")
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two tiny workers behind a gateway, for the tests of one file."""
    with start_fleet(tmp_path_factory.mktemp("tiny")) as fleet:
        yield fleet
