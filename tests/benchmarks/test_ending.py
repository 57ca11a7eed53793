"""A tool that is told to end says so in a line, ends what it has started, and tears no file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.children import child, running
from benchmarks.ending import in_one_line, undisturbed, write
from benchmarks.live import __main__ as live
from benchmarks.live.measure import LiveRow
from benchmarks.replay import study
from benchmarks.replay.cases import FLOOR, Row, Source
from benchmarks.replay.grid import Experiment
from benchmarks.replay.pool import completed
from benchmarks.wire import routers as wire_routers

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.parametrize(
    ("number", "with_what", "code", "said"),
    [
        (signal.SIGINT, None, 130, "interrupted: all is as it was\n"),
        (signal.SIGINT, "two of three are there", 130, "interrupted: two of three are there\n"),
        (signal.SIGTERM, "two of three are there", 143, ""),
        (signal.SIGHUP, None, 129, ""),
    ],
)
def test_a_signal_is_one_line_and_the_usual_code(
    number: int, with_what: str | None, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @in_one_line("all is as it was")
    def main() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise (KeyboardInterrupt(with_what) if with_what else KeyboardInterrupt) from None

    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert capsys.readouterr() == ("", said)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_second_signal_does_not_disturb_its_end() -> None:
    """`timeout` tells its child and then its group, and make tells its own child as well."""
    ended = []

    @in_one_line()
    def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append("whole")

    with pytest.raises(SystemExit) as told:
        main()
    assert (told.value.code, ended) == (143, ["whole"])


def test_under_nohup_it_goes_on_and_what_it_returns_is_returned() -> None:
    @in_one_line()
    def main(code: int) -> int:
        signal.raise_signal(signal.SIGHUP)
        return code

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(3) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_waits_for_what_must_not_be_torn() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append("started")
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "kept.json"
    write(path, "ä")
    assert path.read_bytes() == b"\xc3\xa4"
    honest = Path.write_bytes

    def interrupted(self: Path, content: Any) -> int:
        self.open("wb").close()  # as it is when the first byte is yet to come
        signal.raise_signal(signal.SIGINT)
        return honest(self, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_child_ends_with_whoever_started_it_and_with_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt), running(["sh", "-c", "sleep 600 & echo $!; wait"], log) as process:  # noqa: PT012
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        own = psutil.Process(int(log.read_text()))
        signal.raise_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGTERM
    assert psutil.wait_procs([own], timeout=10)[1] == []


def test_who_is_impatient_leaves_no_child_behind() -> None:
    """The second Ctrl-C comes while the child is ending: it sends it itself."""
    says = "import signal, sys, os, time\n"
    says += "def end(*_):\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(0.3)\n    sys.exit(7)\n"
    says += "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\nsignal.pause()"
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        child([sys.executable, "-c", says], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert process.returncode == 7


def test_one_that_does_not_end_is_killed() -> None:
    says = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    says += "while True:\n    signal.pause()"
    command = [sys.executable, "-c", says]
    with child(command, patience=0.2, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("anew", [True, False])
def test_calls_over_processes_end_where_they_are(anew: bool) -> None:
    calls = completed(time.sleep, [(0.0,), *((600.0,) for _ in range(3))], 2, anew=anew)
    assert next(calls) == (0, None)
    calls.close()
    assert active_children() == []


def test_calls_over_processes_do_not_hear_ctrl_c_themselves() -> None:
    """It reaches all processes of a terminal, and each that heard it would show a traceback."""
    calls = completed(signal.pthread_sigmask, [(signal.SIG_BLOCK, ())] * 3, 2, anew=True)
    blocked = dict(calls)
    assert sorted(blocked) == [0, 1, 2]
    assert all(signal.SIGINT in found for found in blocked.values())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_a_call_raises_ends_the_others() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(completed(int, [("x",)], 2))
    assert active_children() == []


def live_row(router: str) -> LiveRow:
    return LiveRow("chats", router, 0, 5, 0, *(0.5,) * 9)


def measured(ends: type[BaseException] | None) -> Callable[..., LiveRow]:
    """Once; then nobody is measured any more."""
    asked: list[str] = []

    def measure(entry: live.Entry, *_others: object) -> LiveRow:
        asked.append(entry.name)
        if len(asked) > 1 and ends is not None:
            raise ends
        return live_row(entry.name)

    return measure


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_live_study_that_is_interrupted_leaves_its_rows_and_the_documents_figures(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "running_engines", lambda *_args: nullcontext())
    monkeypatch.setattr(wire_routers, "PEERS", tmp_path)  # where none is installed
    for name in ("RESULTS", "PAGE", "UNFINISHED"):
        monkeypatch.setattr(live, name, tmp_path / name)
    for path in (live.RESULTS, live.PAGE):
        path.write_text("<!-- live:begin -->\nold\n<!-- live:end -->\n")
    kept = tmp_path / "own.json" if elsewhere else live.UNFINISHED
    given = ["--json", str(kept)] if elsewhere else []

    monkeypatch.setattr(live, "measure", measured(KeyboardInterrupt))
    told = CliRunner().invoke(live.main, given)
    assert (told.exit_code, told.output.splitlines()[-1]) == (
        130,
        f"interrupted: rows until now, in {kept}: 1",
    )
    assert [one["router"] for one in json.loads(kept.read_text())["rows"]] == ["pinned, no router"]
    assert all("old" in path.read_text() for path in (live.RESULTS, live.PAGE))

    monkeypatch.setattr(live, "measure", measured(None))
    assert CliRunner().invoke(live.main, given).exit_code == 0
    assert kept.exists() is elsewhere
    found = json.loads((kept if elsewhere else live.RESULTS).read_text())["rows"]
    # four workloads, three rounds, three routers
    assert len(found) == 36
    assert all(("old" in path.read_text()) is elsewhere for path in (live.RESULTS, live.PAGE))


def test_a_study_that_is_interrupted_keeps_what_is_finished_and_where_it_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,block_ids,session\n0,17,4,a b,x\n1,17,4,a c,y\n2,17,4,d e,z\n"
    )
    policies = (FLOOR, "estimated_ttft")
    one = Experiment(Source(str(trace), "csv"), 2, (64,), (4.0,), policies, profiles=("l4-8b",))
    monkeypatch.setattr(study, "quick", lambda: {"first": one, "second": one})
    (tmp_path / "second.json").write_text("[]")
    honest = study.run_point

    def until_the_second(
        _call: object, arguments: list[tuple[Source, list[Any], list[Row]]], *_: object, **__: object
    ) -> Any:
        yield 0, honest(*arguments[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "completed", until_the_second)
    told = CliRunner().invoke(study.main, ["--quick", "--out", str(tmp_path)])
    assert (told.exit_code, told.output) == (
        130,
        f"interrupted: experiments that are finished, and in {tmp_path}: 1 of 2; "
        "the others are as they were\n",
    )
    assert len(json.loads((tmp_path / "first.json").read_text())) == 2
    assert (tmp_path / "second.json").read_text() == "[]"
    assert [run["experiments"] for run in json.loads((tmp_path / "machine.json").read_text())] == [["first"]]
