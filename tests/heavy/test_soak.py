"""Twenty minutes of mixed traffic, faults on, clients leaving, workers restarting: `make soak`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.conftest import Process, Spawn
from tests.soak import soak

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]


@pytest.mark.timeout(3600)
async def test_nothing_is_left_behind_by_a_bad_day(spawn: Spawn, free_port: Callable[[], int]) -> None:
    """`SOAK_SECONDS` sets another length."""

    def start(workers: list[str]) -> tuple[Process, int, str]:
        port, admin = free_port(), free_port()
        command = ["-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin)]
        command += ["--no-access-log", "--tokenizer", "m=bytes", "--first-byte-timeout", "5"]
        command += ["--whole-answer-timeout", "5", "--idle-timeout", "5", "--total-timeout", "20"]
        for worker in workers:
            command += ["--worker", worker]
        process = spawn(*command)
        process.wait_http(f"http://127.0.0.1:{port}/ready", timeout=100)
        return process, port, f"http://127.0.0.1:{admin}"

    seen = await soak(start, seconds=float(os.environ.get("SOAK_SECONDS", "1200")))
    print(seen)
