"""Signals to a gateway that is only starting, and to its whole group: with one process and with two."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import Process, Spawn
from tests.e2e.conftest import ROOT, wait_until
from tests.servers import standalone


def catches(pid: int, number: int) -> bool:
    """Whether the process has said what the signal is to mean to it, as the kernel knows."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def served(process: Process, admin: int) -> bool:
    assert process.popen.poll() is None, process.output()
    try:
        return httpx.get(f"http://127.0.0.1:{admin}/admin/policy", trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the kernel of Linux")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_reload_that_is_asked_for_too_early_is_made_up_for(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path, processes: int
) -> None:
    config, admin = tmp_path / "gateway.yaml", free_port()
    said = (
        f"workers: [http://127.0.0.1:9]\nprocesses: {processes}\nport: {free_port()}\nadmin_port: {admin}\n"
    )
    config.write_text(said)
    with standalone(tmp_path / "redis") as redis:
        process = spawn(
            "-m", "gateway", "serve", "--config", str(config), env={"GATEWAY_REDIS_URL": redis.url}
        )
        wait_until(lambda: catches(process.pid, signal.SIGHUP), what="a word on SIGHUP")
        config.write_text(said + "policy: product\n")
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGHUP):
            process.popen.send_signal(number)
        wait_until(lambda: "settings reloaded" in process.output(), 110, "a reload")
        wait_until(lambda: served(process, admin), 110, "an answer")
        policy = httpx.get(f"http://127.0.0.1:{admin}/admin/policy", trust_env=False).json()
        assert policy == {"*": "product"}
        children = psutil.Process(process.pid).children()
        for number in (signal.SIGHUP, signal.SIGUSR2):
            for child in children:
                child.send_signal(number)
        if processes == 1:
            process.popen.send_signal(signal.SIGUSR2)
            wait_until(lambda: "one alone has no successor" in process.output(), what="a word on SIGUSR2")
        assert served(process, admin)
        assert all(child.is_running() for child in children)
        assert "a process ended" not in process.output()


def test_what_came_before_is_told_to_whoever_takes_over() -> None:
    code = """
import asyncio, os, signal
from gateway import early_signals

async def main():
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    print([early_signals.take_over(loop, number, came.set) for number in early_signals.NUMBERS])
    os.kill(os.getpid(), signal.SIGUSR2)
    await came.wait()
    print(early_signals.take_over(loop, signal.SIGHUP, came.set))

early_signals.note()
os.kill(os.getpid(), signal.SIGHUP)
asyncio.run(main())
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.splitlines() == ["[True, False]", "False"]
