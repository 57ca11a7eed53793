"""`python -m workers serve`: what an operator sees when it works, and when it cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import ROOT


def serve(spawn: Any, port: int, *args: str) -> Any:
    return spawn("-m", "workers", "serve", "--port", str(port), *args)


def test_it_says_when_it_is_ready_and_ends_cleanly(spawn: Any, free_port: Callable[[], int]) -> None:
    port = free_port()
    process = serve(
        spawn, port, "--model", "sim:fast", "--served-model-name", "a", "--served-model-name", "b"
    )
    process.wait_http(f"http://127.0.0.1:{port}/health")
    assert f"ready: http://127.0.0.1:{port} serves a, 4096 blocks of 16 tokens" in process.output()
    models = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()["data"]
    assert [model["id"] for model in models] == ["a", "b"]
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/completions",
        json={"model": "b", "prompt": "x", "max_tokens": 1},
        trust_env=False,
    ).json()
    assert answer["model"] == "a"
    # nobody is told of the cache
    assert httpx.get(f"http://127.0.0.1:{port}/kv_event_sources", trust_env=False).json() == {}
    assert process.stop() == 0
    assert "Traceback" not in process.output()


def test_a_stream_in_progress_may_end_before_the_process_does(
    spawn: Any, free_port: Callable[[], int]
) -> None:
    port = free_port()
    process = serve(spawn, port, "--model", "sim:20ms-per-step", "--shutdown-timeout", "60")
    process.wait_http(f"http://127.0.0.1:{port}/health")
    body = {"prompt": "x", "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream(
        "POST", f"http://127.0.0.1:{port}/v1/completions", json=body, trust_env=False
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.signal(15)
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""]
    assert '"completion_tokens":30' in rest[-4]
    assert process.stop() == 0


def test_it_ends_with_the_process_that_started_it(spawn: Any, free_port: Callable[[], int]) -> None:
    port = free_port()
    command = [sys.executable, "-m", "workers", "serve", "--model", "sim:fast", "--port", str(port)]
    source = f"import subprocess; subprocess.Popen({[*command, '--exit-with-parent']!r}).wait()"
    parent = spawn("-c", source)
    parent.wait_http(f"http://127.0.0.1:{port}/health")
    parent.popen.kill()
    parent.popen.wait()
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        except httpx.TransportError:
            break


def test_it_ends_with_one_that_ended_while_its_model_was_loaded(
    spawn: Any, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """It waits with its load until nobody is above it any more: its import of NumPy is held up."""
    port, begun, gone = free_port(), tmp_path / "begun", tmp_path / "gone"
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(
        "import pathlib, sys, time\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(gone)!r}).exists(): time.sleep(0.01)\n"
        f"sys.path.remove({str(tmp_path)!r}); del sys.modules['numpy']\n"
        "import numpy\n"
    )
    command = [sys.executable, "-m", "workers", "serve", "--model", "sim:fast", "--port", str(port)]
    source = f"import subprocess; subprocess.Popen({[*command, '--exit-with-parent']!r}).wait()"
    parent = spawn("-c", source, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    while not begun.exists():
        assert parent.popen.poll() is None, parent.output()
    (worker,) = psutil.Process(parent.pid).children()
    parent.popen.kill()
    parent.popen.wait()
    gone.touch()
    _, alive = psutil.wait_procs([worker], timeout=60)
    for one in alive:
        one.kill()
    assert alive == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--model", "no-such-model"], "no model 'no-such-model'"),
        (["--model", "sim:none"], "no simulated engine is called 'none'"),
        (
            ["--model", "sim:fast", "--max-num-batched-tokens", "8", "--max-num-seqs", "16"],
            "must be at least",
        ),
        (["--model", "sim:fast", "--max-model-len", "100000"], "does not fit 4096 blocks"),
        (
            ["--model", "sim:fast", "--max-model-len", "512", "--long-prefill-token-threshold", "513"],
            "long_prefill_token_threshold (513) must be 0, for none, or at most max_model_len (512)",
        ),
        (["--model", "sim:fast", "--host", "no.such.host.invalid"], "--host takes an address"),
        (["--model", "sim:fast", "--kv-dtype", "int3"], "int3"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(args: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers", "serve", "--port", "0", *args], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for flag in ("--port", "--kv-events-port"):
            args = [flag, port] if flag == "--port" else ["--port", "0", flag, port]
            done = subprocess.run(
                [sys.executable, "-m", "workers", "serve", "--model", "sim:fast", *args],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 2
            assert port in done.stderr
            assert flag in done.stderr
            assert "Traceback" not in done.stderr
