"""Shared by all tests: one async backend, ports nobody else uses, processes that end with their test."""

from __future__ import annotations

import os

# before anything imports NumPy: on busy cores, BLAS threads that spin for each other cost more than they gain
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# hundreds of processes are started: none must compile what the one before it has compiled
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import functools
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from httpx._transports import default as transports

from tests import ports

ROOT = Path(__file__).resolve().parent.parent


def _read_certificates_once() -> None:
    """Each client of httpx, and so each `httpx.get`, reads all certificates of the machine: more work than
    all the rest of a request, in every turn of a test that waits for something."""
    fresh = transports.create_ssl_context
    shared = functools.cache(lambda: fresh(trust_env=False))

    def context(
        verify: ssl.SSLContext | str | bool = True, cert: object = None, trust_env: bool = True
    ) -> object:
        usual = verify is True and cert is None and not trust_env
        return shared() if usual else fresh(verify=verify, cert=cert, trust_env=trust_env)

    transports.create_ssl_context = context


_read_certificates_once()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port that was free a moment ago; every call gives another one."""
    return ports.free_port


@dataclass
class Process:
    """A child in its own process group. Its output goes to a file, for the day that it fails."""

    popen: subprocess.Popen[bytes]
    log: Path
    argv: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_http(self, url: str, *, status: int = 200, timeout: float = 60.0) -> None:
        """Until `url` answers with `status`; fails at once, with its output, if the process ends first."""
        deadline = time.monotonic() + timeout
        with httpx.Client(timeout=2.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if self.popen.poll() is not None:
                    raise AssertionError(f"{self.argv} ended with {self.popen.returncode}:\n{self.output()}")
                try:
                    if client.get(url).status_code == status:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise AssertionError(f"{url} did not answer {status} within {timeout} s:\n{self.output()}")

    def signal(self, number: int) -> None:
        os.killpg(self.popen.pid, number)

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM, then SIGKILL after `timeout`; returns the exit code."""
        if self.popen.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        return self.popen.wait()


Spawn = Callable[..., Process]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Who runs the tests in a shell's background ignores SIGINT, under nohup SIGHUP; so would all that they
    start."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """`spawn("-m", "gateway", …)` runs this Python with these arguments; `spawn(argv=[…])` runs anything."""
    started: list[Process] = []

    def run(*args: str, argv: list[str] | None = None, env: dict[str, str] | None = None) -> Process:
        command = argv if argv is not None else [sys.executable, *args]
        log = tmp_path / f"process-{len(started)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
                start_new_session=True,
            )
        process = Process(popen, log, command)
        started.append(process)
        return process

    yield run
    for process in reversed(started):
        process.stop()
