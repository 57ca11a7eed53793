"""Half a minute of the soak that `make soak` runs for twenty."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Process, Spawn
from tests.soak import soak

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(300)
async def test_nothing_is_left_behind_by_a_bad_half_minute(
    spawn: Spawn, free_port: Callable[[], int]
) -> None:
    def start(workers: list[str]) -> tuple[Process, int, str]:
        port, admin = free_port(), free_port()
        command = ["-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin)]
        command += ["--no-access-log", "--tokenizer", "m=bytes", "--first-byte-timeout", "2"]
        command += ["--whole-answer-timeout", "2", "--idle-timeout", "2", "--total-timeout", "10"]
        for worker in workers:
            command += ["--worker", worker]
        process = spawn(*command)
        process.wait_http(f"http://127.0.0.1:{port}/ready", timeout=100)
        return process, port, f"http://127.0.0.1:{admin}"

    seen = await soak(start, seconds=30)
    assert seen["requests"] > 50
    assert seen["restarts"] >= 3
