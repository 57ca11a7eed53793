"""Ctrl-C in each tool, as a terminal sends it: to all processes of the tool's group."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.replay.grid import full
from benchmarks.stores import server_binary
from tests.conftest import Process, Spawn

pytestmark = pytest.mark.usefixtures("interruptible")

CORES = sorted(os.sched_getaffinity(0))
TRACE = "benchmarks/traces/agentic_sessions.jsonl.gz"
AT_THE_END = "figures come at the end, so there are none"


def started(least: int) -> Callable[[Process], bool]:
    """So many processes of its own."""
    return lambda process: len(psutil.Process(process.pid).children(recursive=True)) >= least


def begun(process: Process) -> bool:
    return "match…" in process.output()


def until(done: Callable[[Process], bool], process: Process) -> None:
    deadline = time.monotonic() + 60
    while not done(process):
        assert process.popen.poll() is None, process.output()
        assert time.monotonic() < deadline, process.output()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("tool", "there", "said"),
    [
        pytest.param(
            f"wire --only bare --cores {CORES[0]},{CORES[-1]} --json OUT/b.json", started(4), AT_THE_END,
            marks=pytest.mark.skipif(len(CORES) < 2, reason="what is measured has a core of its own"),
        ),
        ("calls", started(1), AT_THE_END),
        ("steps", started(1), AT_THE_END),
        ("micro --only match", begun, AT_THE_END),
        ("live --only chats --routers pinned --rounds 1", started(4), "nothing was written"),
        # two processes, and one of Python's own beside them
        (
            f"replay {TRACE} --format agentic --blocks-per-worker 1700 --jobs 2 --json OUT/r.json",
            started(3),
            AT_THE_END,
        ),
        (
            "replay.study --quick --out OUT --jobs 2",
            started(3),
            "experiments that are finished, and in OUT: 0 of 3; the others are as they were",
        ),
        ("replay.recheck --jobs 2", started(3), f"0 of {2 * len(full())} rows were compared, 0 differ"),
        ("demo --model tiny", started(3), AT_THE_END),
        ("exactness", started(3), AT_THE_END),
        pytest.param(
            "redis_memory", started(1), AT_THE_END,
            marks=pytest.mark.skipif(server_binary() is None, reason="needs a Redis or Valkey"),
        ),
        ("replication --rounds 1", started(2), AT_THE_END),
    ],
)  # fmt: skip
def test_it_ends_in_one_line_with_all_that_it_started(
    tool: str, there: Callable[[Process], bool], said: str, tmp_path: Path, spawn: Spawn
) -> None:
    name, *options = tool.replace("OUT", str(tmp_path)).split()
    process = spawn("-m", f"benchmarks.{name}", *options)
    until(there, process)
    own = psutil.Process(process.pid).children(recursive=True)
    process.signal(signal.SIGINT)
    # Python may end by the signal itself, which a shell shows as 130, too
    assert process.popen.wait(60) in (130, -signal.SIGINT), process.output()
    _gone, left = psutil.wait_procs(own, timeout=10)
    assert left == []
    output = process.output()
    assert output.splitlines()[-1] == f"interrupted: {said}".replace("OUT", str(tmp_path))
    assert output.count("interrupted") == 1
    assert "Traceback" not in output


def test_rows_that_were_written_stay(tmp_path: Path, spawn: Spawn) -> None:
    kept = tmp_path / "live.json"
    options = "--only chats --requests 8 --routers pinned --rounds 500 --engines 1 --time-scale 0.1 --json"
    process = spawn("-m", "benchmarks.live", *options.split(), str(kept))
    until(lambda _process: kept.exists(), process)
    process.signal(signal.SIGINT)
    assert process.popen.wait(60) in (130, -signal.SIGINT)
    rows = json.loads(kept.read_text())["rows"]
    assert process.output().splitlines()[-1] == f"interrupted: rows until now, in {kept}: {len(rows)}"
