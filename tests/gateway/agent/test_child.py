"""Engines as real child processes: exit codes, stubborn ones, orphans."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.agent.child import Child
from gateway.errors import ConfigError

pytestmark = pytest.mark.anyio


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),  # as a shell says it
    ],
)
async def test_its_exit_code_is_kept(code: str, expected: int) -> None:
    child = await Child.start(script(code))
    assert await child.wait() == expected
    assert await child.stop(1.0) == expected


async def test_one_that_ends_by_our_signal_ended_well() -> None:
    child = await Child.start(["sleep", "60"])
    assert await child.stop(30.0) == 0


async def test_one_that_says_something_else_at_the_end_is_believed() -> None:
    code = (
        "import signal,sys,time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('on', flush=True)\n"
        "time.sleep(60)"
    )
    child = await Child.start(script(code))
    await _until_it(child, "SigCgt")
    assert await child.stop(30.0) == 3


async def test_a_stubborn_one_is_killed() -> None:
    code = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    child = await Child.start(script(code))
    await _until_it(child, "SigIgn")
    assert await child.stop(0.1) == 0


async def test_no_such_command() -> None:
    with pytest.raises(ConfigError, match="can't start 'no-such-engine'"):
        await Child.start(["no-such-engine"])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' parent-death signal")
def test_a_killed_agent_leaves_no_engine_behind(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import asyncio, pathlib\n"
        "from gateway.agent.child import Child\n"
        "async def main():\n"
        "    child = await Child.start(['sleep', '120'])\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(child._process.pid))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen(script(code)) as agent:
        deadline = time.monotonic() + 60
        while not (note.exists() and note.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        agent.kill()
    engine = int(note.read_text())
    while _runs(engine):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a zombie that nobody reaps has ended all the same
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def _until_it(child: Child, what: str) -> None:
    """Until SIGTERM is in this set of the child's (proc(5): SigCgt caught, SigIgn ignored)."""
    status = Path(f"/proc/{child._process.pid}/status")
    deadline = time.monotonic() + 60
    while not _signals(status, what) >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def _signals(status: Path, what: str) -> int:
    lines = [line for line in status.read_text().splitlines() if line.startswith(what)]
    return int(lines[0].split()[1], 16)
