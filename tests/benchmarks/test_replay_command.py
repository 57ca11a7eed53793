"""``python -m benchmarks.replay``, as it is typed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.replay.__main__ import main
from benchmarks.replay.floor import PooledFleet
from gateway.routing.registry import POLICIES

CSV = """arrival_s,input_tokens,output_tokens,block_ids,session
0.0,40,10,a b,s1
1.0,72,10,a b c d,s1
1.5,40,10,x y,s2
2.0,104,10,a b c d e f,s1
"""
BAILIAN = """
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40, "output_length": 10, "hash_ids": [1, 2, 3]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 65.2, "input_length": 72, "output_length": 10, "hash_ids": [1, 2, 4, 5, 6]}
{"chat_id": 3, "parent_chat_id": -1, "timestamp": 66.1, "input_length": 33, "output_length": 10, "hash_ids": [1, 2, 7]}
""".lstrip()  # noqa: E501 - a line of the file
SMALL = ("--workers", "2", "--blocks-per-worker", "64", "--profile", "fast")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "t.jsonl").write_text(BAILIAN)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "requests", "infinite"),
    # blocks of 16 tokens that came before, answers of 10 tokens included, over all tokens: of the second turn
    # three (40 + 10 tokens), of the third five (72 + 10); of the second turn three, of the stranger two
    [("t.csv", "csv", 4, 16 * 8 / 256), ("t.jsonl", "bailian", 3, 16 * 5 / 145)],
)
def test_every_policy_and_rate_gives_a_row(
    traces: Path, name: str, kind: str, requests: int, infinite: float
) -> None:
    out = traces / "out.json"
    asked = (str(traces / name), "--format", kind, *SMALL, "--rate", "1,2", "--replicas", "2", "--seed", "3")
    told = CliRunner().invoke(main, [*asked, "--policy", "all", "--json", str(out)])
    assert told.exit_code == 0, told.output
    assert "estimated_ttft × 2" in told.output
    assert "floor × 2" not in told.output  # it has no gateway
    rows = json.loads(out.read_text())
    assert [(row["policy"], row["rate"]) for row in rows] == [
        (policy, rate) for rate in (1.0, 2.0) for policy in ("floor", *POLICIES)
    ]
    for row in rows:
        assert (row["workers"], row["blocks_per_worker"], row["replicas"], row["seed"]) == (2, 64, 2, 3)
        assert (row["requests"], row["default"]) == (requests, row["policy"] == "estimated_ttft")
        assert row["infinite_hit_rate"] == row["ceiling_hit_rate"] == pytest.approx(infinite, abs=1e-6)
        assert 0 <= row["hit_rate"] <= row["infinite_hit_rate"] + 1e-6
        assert 1 <= row["balance"] <= 2
        assert (row["ttft_p50_s"], row["ttft_p99_s"], row["floor_ttft_p50_s"], row["floor_ttft_p99_s"]) == (
            (0,) * 4
        )
        assert row["goodput_rps"] > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--policy", "nosuch"), "unknown policy 'nosuch'; there are: estimated_ttft"),
        (("--policy", "estimated_ttft:nope=1"), "has no parameter 'nope'"),
        (("--policy", "estimated_ttft:work_weight=x"), "work_weight='x' is no finite number of 0 or more"),
        (("--policy", "estimated_ttft:work_weight=-1"), "work_weight=-1.0 is no finite number of 0 or more"),
        (
            ("--policy", "floor;additive:overlap_weight=nan"),
            "overlap_weight=nan is no finite number of 0 or more",
        ),
        (("--policy", "estimated_ttft:work_weight"), "work_weight='' is no finite number of 0 or more"),
        (("--rate", "0"), "'0' is no rate: a finite number above 0 is"),
        (("--rate", "1,nan"), "'nan' is no rate: a finite number above 0 is"),
        (("--rate", "inf"), "'inf' is no rate: a finite number above 0 is"),
        (("--rate", "fast"), "'fast' is no rate: a finite number above 0 is"),
        (("--rate", "4,,"), "'' is no rate: a finite number above 0 is"),
        (("--event-delay", "nan"), "nan is not a finite number"),
        (("--placement-delay", "inf"), "inf is not a finite number"),
        (("--load-interval", "nan"), "nan is not a finite number"),
        (("--slo-ttft", "nan"), "nan is not a finite number"),
        (("--slo-tpot", "inf"), "inf is not a finite number"),
        (("--max-ttft", "nan"), "nan is not a finite number"),
        (("--slice-after", "-1"), "Invalid value for '--slice-after': -1.0 is not in the range x>=0"),
        (("--slice-after", "inf"), "inf is not a finite number"),
        (("--profile", "fast*x"), "how many of 'fast'? 'x' is no whole number"),
        (("--profile", "fast*9000000000000"), "'fast*9000000000000' are 9000000000000 engines, 2 are asked"),
        (("--profile", "nosuch"), "no simulated engine is called 'nosuch': there are h100-8b"),
        (("--limit", "1"), "has no two requests at different times"),
        (("--format", "bailian"), "is no bailian trace: line 1 is no JSON"),
        (
            ("--longest", "40"),
            "none of the 4 requests of t is left: the shortest has 50 tokens in all, 40 are the most",
        ),
        (
            ("--blocks-per-worker", "3"),
            "none of the 4 requests of t is left: the shortest has 50 tokens in all, 47 are the most",
        ),
        (
            ("--copies", "2"),
            "t.csv: its requests cannot be told apart by session, so it cannot be multiplied",
        ),
        (("--skip", "4"), "is left: the shortest has 50 tokens in all, 1023 are the most"),
        (("--plot", "x.xyz"), "x.xyz is no kind of picture; its end is to be one of "),
        (("--plot", "x"), "x is no kind of picture"),
        (("--plot", "/dev/null/x.png"), "/dev/null/x.png cannot be written: /dev/null is no folder"),
        (
            ("--json", "-"),
            "- is no file: standard output is for people; name a file (./- for one of that name)",
        ),
        (
            ("--plot", "-"),
            "- is no file: standard output is for people; name a file (./- for one of that name)",
        ),
        (("--json", "/dev/null/x.json"), "/dev/null/x.json cannot be written: /dev/null is no folder"),
    ],
)
def test_a_mistake_is_named_before_anything_is_computed(
    traces: Path, given: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_args: object) -> None:
        raise AssertionError("a fleet was replayed")

    monkeypatch.setattr(PooledFleet, "run", never)
    told = CliRunner().invoke(main, [str(traces / "t.csv"), "--format", "csv", *SMALL, *given])
    assert told.exit_code == 2
    assert said in " ".join(told.output.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is Linux's /dev/full")
def test_what_was_computed_is_shown_where_it_cannot_be_written(traces: Path) -> None:
    asked = (str(traces / "t.csv"), "--format", "csv", *SMALL, "--policy", "product", "--json", "/dev/full")
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 1
    assert "│ product " in told.output
    assert "Error: what was computed could not be written: " in told.output


def test_prompts_in_slices_are_called_so(traces: Path) -> None:
    out = traces / "out.json"
    asked = (str(traces / "t.csv"), "--format", "csv", *SMALL, "--policy", "product", "--json", str(out))
    told = CliRunner().invoke(main, [*asked, "--slice-after", "2.5"])
    assert told.exit_code == 0, told.output
    assert "product (slices after 2.5 s)" in told.output
    assert "floor (" not in told.output  # it has no gateway
    assert [row["slice_after_s"] for row in json.loads(out.read_text())] == [2.5, 2.5]


def test_a_damaged_trace_is_one_line_and_no_traceback(traces: Path) -> None:
    """As a shell sees it."""
    (traces / "cut.csv.gz").write_bytes(gzip.compress(CSV.encode())[:40])
    command = [
        sys.executable,
        "-m",
        "benchmarks.replay",
        str(traces / "cut.csv.gz"),
        "--format",
        "csv",
        *SMALL,
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"Error: {traces}/cut.csv.gz is damaged, or only a part of its .gz: ")
