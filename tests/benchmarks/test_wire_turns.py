"""`make bench-turns`: two versions side by side, and what their pairs say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.ratios import ratio
from benchmarks.wire.pairs import Compared, compared, figures, order, said, shares, table
from benchmarks.wire.versions import changed, commit_of, copied, same, unpacked
from tests.conftest import Spawn


def test_who_was_second_begins_the_next_round() -> None:
    asked = [who for number in range(4) for who in order(number)]
    assert asked == ["against", "tree", "tree", "against"] * 2


def test_rounds_are_shared_by_starts() -> None:
    assert shares(12, 4) == [range(3), range(3, 6), range(6, 9), range(9, 12)]
    assert shares(7, 3) == [range(2), range(2, 4), range(4, 7)]
    assert shares(1, 4) == [range(1)]


def test_pairs_are_compared_by_their_own_ratios() -> None:
    """A machine that was half as quick for one pair changes medians and no ratio of a pair but its own."""
    pairs = [{"against": a, "tree": t} for a, t in ((100, 90), (200, 160), (110, 99), (100, 110))]
    assert compared(pairs) == Compared(105.0, 104.5, 104.5 / 105, 0.9, 0.8, 1.1)


def test_a_pair_that_is_lost_in_noise_compares_nothing() -> None:
    """Of 0.3 s of chunks nothing may be left beyond what resting takes."""
    lost = [{"against": a, "tree": t} for a, t in ((50.0, 45.0), (-2.0, 40.0), (40.0, 38.0))]
    assert compared(lost) == Compared(40.0, 40.0, 1.0, None, None, None)
    assert compared([{"against": 0.0, "tree": 3.0}]) == Compared(0.0, 3.0, None, None, None, None)
    assert table(
        {"chunk": compared(lost), "json_200": compared([{"against": 0.0, "tree": 3.0}])}
    ).splitlines()[2:] == [
        "| a paced chunk | 40.0 | 40.0 | 1.000 × | not measurable | not measurable |",
        "| a JSON request of 200 tokens | 0 | 3 | not measurable | not measurable | not measurable |",
    ]


def test_a_run_as_a_table() -> None:
    rounds = [
        {
            "json_200": {"against": 400.0, "tree": tree},
            "json_8000": {"against": 1000.0, "tree": 2 * tree},
            "chunk": {"against": 50.0, "tree": tree / 10},
        }
        for tree in (380.0, 420.0, 400.0)
    ]
    assert table(figures(rounds)).splitlines()[2:] == [
        "| a JSON request of 200 tokens | 400 | 400 | 1.000 × | 1.000 × | 0.950 to 1.050 × |",
        "| one of 8,000 | 1000 | 800 | 0.800 × | 0.800 × | 0.760 to 0.840 × |",
        "| a paced chunk | 50.0 | 40.0 | 0.800 × | 0.800 × | 0.760 to 0.840 × |",
    ]
    assert said(1, 3, rounds[1]) == (
        "round 2 of 3: a JSON request of 200 tokens 400.0 → 420.0; one of 8,000 1000.0 → 840.0; "
        "a paced chunk 50.0 → 42.0"
    )


def repository(root: Path) -> Path:
    """Two commits, of which the second changes the gateway; the one before them has none."""
    settings = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(root), *settings, *words], check=True, capture_output=True)

    git("init", "-b", "main")
    git("commit", "--allow-empty", "-m", "Nothing")
    (root / "gateway").mkdir()
    for text in ("1", "2"):
        (root / "gateway/__init__.py").write_text(text)
        git("add", "gateway")
        git("commit", "-m", f"Version {text}")
    return root


def test_a_revision_is_unpacked_and_the_working_tree_is_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    root = repository(tmp_path / "repo")
    old, head = commit_of("HEAD~1", root), commit_of("main", root)
    assert (old.subject, head.subject) == ("Version 1", "Version 2")
    assert str(old) == f"{old.hash[:10]} “Version 1”"
    assert (changed(root), same(head, root), same(old, root)) == (False, True, False)
    (root / "gateway/new.py").write_text("")
    assert (changed(root), same(head, root)) == (True, False)
    made = unpacked(old, root, tmp_path / "old")
    assert [str(p.relative_to(made)) for p in made.rglob("*")] == ["gateway", "gateway/__init__.py"]
    assert (made / "gateway/__init__.py").read_text() == "1"
    assert (copied(root, tmp_path / "tree") / "gateway/new.py").exists()
    assert not (tmp_path / "old.tar").exists()


@pytest.mark.parametrize("revision", ["nonsense", "HEAD~2", "--all", ""])
def test_what_is_no_revision_of_a_gateway_is_said(revision: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^'?{revision}'? is no revision"):
        commit_of(revision, repository(tmp_path))


CORES = sorted(os.sched_getaffinity(0))
TWO = ("--cores", f"{CORES[0]},{CORES[-1]}")
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="what is measured has a core of its own")


def command(*more: str) -> list[str]:
    return ["-m", "benchmarks.wire.turns", "--against", "HEAD", *TWO, *more]


@needs_two_cores
def test_both_versions_run_and_answer(tmp_path: Path) -> None:
    out = tmp_path / "turns.json"
    ran = subprocess.run(
        [sys.executable, *command("--rounds", "1", "--seconds", "0.3", "--json", str(out))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    document = json.loads(out.read_text())
    head = document["tree"]["hash"]
    assert document["against"]["hash"] == head
    assert ran.stdout.splitlines()[0].startswith(f"against       {head[:10]} “")
    assert ran.stdout.splitlines()[1].startswith(f"working tree  {head[:10]} “")
    assert document["failed"] == {"against": 0, "tree": 0}
    assert [set(found) for found in document["rounds"]] == [{"json_200", "json_8000", "chunk"}]
    for name, found in document["figures"].items():
        pair = document["rounds"][0][name]
        # what resting takes is taken off: of the few chunks of a third of a second that may be all
        assert name == "chunk" or min(pair.values()) > 0
        assert found["of_pairs"] == found["of_medians"] == ratio(pair["tree"], pair["against"])
    assert table({name: Compared(**one) for name, one in document["figures"].items()}) in ran.stdout


@needs_two_cores
def test_the_bench_told_to_end_leaves_nothing(tmp_path: Path, spawn: Spawn) -> None:
    asked = (
        *TWO,
        "--only",
        "bare Python",
        "--rounds",
        "1",
        "--seconds",
        "30",
        "--json",
        str(tmp_path / "b.json"),
    )
    process = spawn("-m", "benchmarks.wire", *asked)
    deadline = time.monotonic() + 60
    while len(started := psutil.Process(process.pid).children(recursive=True)) < 4:
        assert process.popen.poll() is None, process.output()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(60) == 143
    _gone, left = psutil.wait_procs(started, timeout=10)
    assert left == []


@needs_two_cores
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "codes"), [(signal.SIGINT, (130, -signal.SIGINT)), (signal.SIGTERM, (143,))]
)
def test_told_to_end_it_leaves_nothing(
    number: int, codes: Sequence[int], tmp_path: Path, spawn: Spawn
) -> None:
    """While the first version is being started, where a process is easily forgotten, or a moment later.
    Python may end by SIGINT itself, which a shell shows as 130, too."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    process = spawn(*command(), env={"TMPDIR": str(folder)})
    deadline = time.monotonic() + 60
    while not list(folder.glob("*/against/router.log")):
        assert process.popen.poll() is None, process.output()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) >= 4
    process.popen.send_signal(number)
    assert process.popen.wait(60) in codes
    _gone, left = psutil.wait_procs(started, timeout=10)
    assert left == []
    assert list(folder.iterdir()) == []
    said = "interrupted: figures come at the end, so there are none"
    assert (said in process.output().splitlines()[-1:]) is (number == signal.SIGINT)
    assert "Traceback" not in process.output()
