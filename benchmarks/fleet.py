"""A fleet to measure: one that runs already, or `prefix-gateway up` started for the purpose."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import httpx

from benchmarks.children import child


@dataclass(frozen=True, slots=True)
class Fleet:
    url: str
    admin_url: str

    def model(self) -> str:
        """The first model served."""
        entries = httpx.get(self.url + "/v1/models", trust_env=False).raise_for_status().json()["data"]
        if not entries:
            raise SystemExit(f"{self.url} serves no model yet")
        return str(entries[0]["id"])

    def workers(self) -> list[str]:
        answer = httpx.get(self.admin_url + "/admin/workers", trust_env=False).raise_for_status().json()
        return [w["url"] for w in answer["workers"]]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def free_row(count: int, rng: Random) -> int:
    """The first of `count` ports in a row that are all free, from below those that clients are given."""
    while True:
        first = rng.randrange(15_000, 30_000)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("0.0.0.0", port))  # noqa: S104
            except OSError:
                continue
        return first


@contextmanager
def running_fleet(
    url: str | None,
    admin_url: str | None = None,
    *,
    model: str,
    workers: int = 2,
    worker_args: Sequence[str] = (),
    gateway_args: Sequence[str] = (),
    timeout: float = 180.0,
) -> Iterator[Fleet]:
    """The fleet at `url`, or one that is started and stopped here."""
    if url is not None:
        fleet = _at(url.rstrip("/"), admin_url)
        _must_answer("--url", fleet.url + "/v1/models")
        _must_answer("--admin-url", fleet.admin_url + "/admin/workers")
        yield fleet
        return
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "gateway", "up", "--model", model, "--workers", str(workers)]
    command += ["--port", str(port), "--admin-port", str(admin_port), *gateway_args]
    for argument in worker_args:
        command += ["--worker-arg", argument]
    fleet = Fleet(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
    # stdout carries the ready banner, which is for people; faults go to stderr and are seen
    with child(command, patience=30, stdout=subprocess.DEVNULL) as process:
        _wait_ready(fleet, process, timeout)
        yield fleet


def _at(url: str, admin_url: str | None) -> Fleet:
    if admin_url is None:
        host, _, public_port = url.rpartition(":")
        if not public_port.isdecimal():
            raise SystemExit(f"--url {url} names no port, so --admin-url is wanted")
        admin_url = f"{host}:{int(public_port) + 1}"
    return Fleet(url, admin_url.rstrip("/"))


def _must_answer(option: str, url: str) -> None:
    try:
        httpx.get(url, trust_env=False).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SystemExit(f"{option}: no gateway answers at {url}: {error or type(error).__name__}") from None


def _wait_ready(fleet: Fleet, process: subprocess.Popen[bytes], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"prefix-gateway up ended with {process.returncode}; its message is above")
        try:
            if httpx.get(fleet.url + "/ready", timeout=2.0, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the fleet was not ready within {timeout:.0f} s")
