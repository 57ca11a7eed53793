"""What the tools refuse before they measure, and which runs may replace what the documents tell of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import calls, demo, micro, steps, timing
from benchmarks.asked import Output, cores, output, span, unwritable, writable
from benchmarks.live import merge
from benchmarks.live.__main__ import main as live
from benchmarks.live.__main__ import whole
from benchmarks.wire import __main__ as wire
from benchmarks.wire import turns
from benchmarks.wire.routers import Router

USUAL = Path("docs/usual.json")
CORES = {0, 1, 2, 3}
"""Of the machine that tools are told to be on."""


@pytest.mark.parametrize(
    ("given", "is_whole", "page", "found"),
    [
        (None, True, False, Output(USUAL, True)),
        (Path("x"), True, False, Output(Path("x"), False)),
        (None, False, False, Output(None, False)),
        (Path("x"), False, False, Output(Path("x"), False)),
        (None, False, True, Output(USUAL, True)),
        (Path("x"), False, True, Output(Path("x"), True)),
    ],
)
def test_a_page_is_of_a_whole_run_or_asked_for(
    given: Path | None, is_whole: bool, page: bool, found: Output
) -> None:
    assert output(given, USUAL, whole=is_whole, page=page) == found


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        (
            micro.main,
            "--only nonsense,keys",
            "--only: unknown: nonsense; there are: keys, match, ",
        ),
        (micro.main, "--json /dev/null/x", "/dev/null/x cannot be written: /dev/null is no folder"),
        (micro.main, "--json tests", "tests is a folder"),
        (micro.main, "--json -", "- is no file: standard output is for people; name a file"),
        (wire.main, "--json -", "- is no file: standard output is for people; name a file"),
        (wire.main, "--report --json -", "- is no file: standard output is for people; name a file"),
        (turns.main, "--against HEAD --json -", "- is no file: standard output is for people; name a file"),
        (demo.main, "--json -", "- is no file: standard output is for people; name a file"),
        (demo.main, "--plot -", "- is no file: standard output is for people; name a file"),
        (calls.main, "--requests 0", "'0' is no whole number of 1 or more"),
        (calls.main, "--rounds -3", "'-3' is no whole number of 1 or more"),
        (calls.main, "--least nan", "'nan' is no number of 0 or more"),
        (steps.main, "--turns 1.5", "'1.5' is no whole number of 1 or more"),
        (steps.main, "--requests x", "'x' is no whole number of 1 or more"),
        (wire.main, "--rounds 0", "'0' is no whole number of 1 or more"),
        (wire.main, "--seconds 0", "'0' is no number of seconds above 0"),
        (wire.main, "--seconds 1e99", "'1e99' are too many seconds: 86,400 are the most, a day"),
        (wire.main, "--rounds 10000001", "'10000001' is too many: 10,000,000 are the most"),
        (wire.main, "--seconds inf", "'inf' is no number of seconds above 0"),
        (wire.main, "--cores 0", "'0' is not like 0,1 or 0-2,3"),
        (wire.main, "--cores 0,x", "'0,x' is not like 0,1 or 0-2,3"),
        (wire.main, "--cores 2-1,0", "'2-1,0' is not like 0,1 or 0-2,3"),
        (wire.main, "--cores 0,7", "no core 7; there are: 0, 1, 2, 3"),
        (wire.main, "--cores 0,0", "'0,0' has core 0 twice: what is measured is alone on its own"),
        (wire.main, "--cores 0-1,1", "'0-1,1' has core 1 twice: what is measured is alone on its own"),
        (turns.main, "--against HEAD --cores 2,2", "'2,2' has core 2 twice: what is measured is alone"),
        (wire.main, "--cores 0-1,2 --only nonsense", "--only: unknown: nonsense; there are: ours, bytes; "),
        (demo.main, "--page --model tiny", "--page is of smollm2 and a fleet of its own, without --json and"),
        (turns.main, "", "the following arguments are required: --against"),
        (turns.main, "--against no/such", "--against: no/such is no revision with a gateway in it: "),
        (turns.main, "--against HEAD --rounds 0", "'0' is no whole number of 1 or more"),
        (turns.main, "--against HEAD --row events", "invalid choice: 'events' (choose from 'bytes', "),
        (
            wire.main,
            "--report --json no/such/file",
            "--report: there are no figures in no/such/file",
        ),
    ],
)
def test_a_mistake_is_one_line(
    tool: Callable[[Sequence[str]], int],
    given: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: CORES)
    with pytest.raises(SystemExit) as ended:
        tool(given.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--only nonsense,chats", "unknown: nonsense; there are: chats, chats-in-turn, mooncake, agentic"),
        ("--policies nonsense", "unknown: nonsense; there are: estimated_ttft, product"),
        ("--peers nonsense", "unknown: nonsense; there are: sglang-router, smg, vllm-router, nginx"),
        (
            "--routers nonsense --peers smg",
            "unknown: nonsense; there are: pinned, no router; ours; ours, round_robin; smg",
        ),
        ("--time-scale nan", "nan is not a finite number"),
        ("--time-scale 0", "0.0 is not in the range x>0"),
        ("--rounds 0", "0 is not in the range x>=1"),
        ("--json /dev/null/x", "/dev/null/x cannot be written: /dev/null is no folder"),
        ("--json -", "'--json': - is no file: standard output is for people; name a file (./- for one of"),
        ("--page README.md", "README.md has no <!-- live:begin --> … <!-- live:end -->"),
    ],
)
def test_a_live_study_that_cannot_be_is_refused(given: str, said: str) -> None:
    told = CliRunner().invoke(live, given.split())
    assert told.exit_code == 2
    assert said in " ".join(told.output.split())


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", True),
        ("--rounds 5", True),
        ("--rounds 1", False),
        ("--only chats", False),
        ("--routers ours", False),
        ("--requests 60", False),
        ("--time-scale 0.5", False),
    ],
)
def test_a_live_study_is_whole_without_options(given: str, found: bool) -> None:
    context: click.Context = live.make_context("live", given.split())
    assert whole(context) is found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"tokens": 200, "requests": 500, "rounds": 5, "turns": 3}, True),
        ({"tokens": 200, "requests": 501, "rounds": 6, "turns": 4}, True),
        ({"tokens": 200, "requests": 10, "rounds": 5, "turns": 3}, False),
        ({"tokens": 200, "requests": 500, "rounds": 1, "turns": 3}, False),
        ({"tokens": 200, "requests": 500, "rounds": 5, "turns": 1}, False),
        ({"tokens": 8000, "requests": 500, "rounds": 5, "turns": 3}, False),
    ],
)
def test_steps_are_whole_with_as_many_as_usual(given: dict[str, int], found: bool) -> None:
    assert steps.whole(given) is found


@pytest.mark.parametrize(
    ("given", "written"),
    [("--only scores", {}), ("--only scores --json x/y.json", {"x/y.json": 3})],
)
def test_a_part_leaves_page_and_kept_result(
    given: str, written: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "BATCH_S", 0.0)
    monkeypatch.chdir(tmp_path)
    for path in (micro.RESULTS, Path("docs/performance.md")):
        path.parent.mkdir(parents=True)
        path.write_text("<!-- micro:begin -->\nold\n<!-- micro:end -->\n")
    before = set(tmp_path.rglob("*"))
    assert micro.main(given.split()) == 0
    for path in (micro.RESULTS, Path("docs/performance.md")):
        assert path.read_text() == "<!-- micro:begin -->\nold\n<!-- micro:end -->\n"
    made = {str(p.relative_to(tmp_path)): p for p in set(tmp_path.rglob("*")) - before if p.is_file()}
    assert {name: path.read_text().count('"step"') for name, path in made.items()} == written


def test_a_router_that_is_not_installed_is_known_by_name() -> None:
    routers = [Router("ours, bytes", []), Router("ours, two", []), Router("bare Python", [])]
    assert wire.chosen("", routers, ["nginx"]) == routers
    assert wire.chosen("ours; two,bare,nginx", routers, ["nginx"]) == routers[1:]
    with pytest.raises(ValueError, match="nginx is not here"):
        wire.chosen("nginx", routers, ["nginx"])


def test_parts_of_unlike_machines_become_no_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- live:begin -->\nold\n<!-- live:end -->\n")
    parts = [tmp_path / "a.json", tmp_path / "b.json"]
    for part, engines in zip(parts, (2, 4), strict=True):
        part.write_text(
            f'{{"machine": {{}}, "engines": {engines}, "seed": 0, "rows": [], "workloads": {{}}}}'
        )
    out = tmp_path / "out.json"
    told = CliRunner().invoke(merge.main, [str(out), *map(str, parts), "--page", str(page)])
    assert (told.exit_code, out.exists(), "old" in page.read_text()) == (2, False, True)
    assert "these cannot become one: engines differs: 2 and 4" in told.output


def test_several_cores_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: CORES)
    assert (cores("0,1"), cores("0-2,3"), cores("3,0")) == (("0", "1"), ("0-2", "3"), ("3", "0"))
    assert (list(span("3")), list(span("0-2"))) == ([3], [0, 1, 2])
    with pytest.raises(ValueError, match="invalid literal"):
        span("a-b")


@pytest.mark.parametrize("given", ["--cores 0,0", "--cores 0,1", ""])
def test_one_core_is_one_too_few(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    with pytest.raises(SystemExit) as ended:
        wire.main(given.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "argument --cores: two cores are needed, for what is measured is alone on its own; there is one: 0\n"
    )


def test_a_file_in_folders_that_are_not_there_yet_can_be_written(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "a" / "b" / "c.json") == ""
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").write_text("")
    assert (
        unwritable(tmp_path / "a" / "b.json")
        == f"{tmp_path}/a/b.json cannot be written: {tmp_path}/a is no folder"
    )


def test_a_dash_is_a_file_s_name_where_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert writable("./-") == Path("-")
    told = CliRunner().invoke(merge.main, ["-", __file__])
    assert (told.exit_code, "'OUT': - is no file: standard output is for people" in told.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_tool_ends_with_2() -> None:
    """As a shell sees it."""
    command = [sys.executable, "-m", "benchmarks.micro", "--only", "nonsense"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert "Traceback" not in told.stderr
