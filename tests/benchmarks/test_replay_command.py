"""``python -m benchmarks.replay``, as it is typed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.replay import batch, formats
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
        (("--policy", "estimated_ttft:work_weight=x"), "work_weight='x' is no number from 0 to 1,000,000"),
        (("--policy", "estimated_ttft:work_weight=-1"), "work_weight=-1.0 is no number from 0 to 1,000,000"),
        (
            ("--policy", "floor;additive:overlap_weight=nan"),
            "overlap_weight=nan is no number from 0 to 1,000,000",
        ),
        (("--policy", "estimated_ttft:work_weight"), "work_weight='' is no number from 0 to 1,000,000"),
        (
            ("--policy", "consistent_hash:load_factor=1e308"),
            "load_factor=1e+308 is no number from 1 to 1,000,000",
        ),
        (("--policy", "consistent_hash:points=2000000"), "points=2000000.0 is no whole number from 1 to 256"),
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
        (("--workers", "4097"), "--workers: 4,097 are too many, 4,096 are the most: each request is weighed"),
        (("--workers", "9000000000000"), "--workers: 9,000,000,000,000 are too many, 4,096 are the most"),
        (
            ("--blocks-per-worker", "10000001"),
            "--blocks-per-worker: 2 workers have 20,000,002 blocks, 20,000,000 are the most: each takes",
        ),
        (
            ("--replicas", "257"),
            "--replicas: 257 are too many, 256 are the most: each keeps an index of its own",
        ),
        # four requests at one a second; 256 tell each of 255, a thousand times a second
        (
            ("--replicas", "256", "--rate", "1", "--load-interval", "0.001"),
            "each of 256 tells every other one its loads, in 4 s once in 0.001: 261,120,000 times",
        ),
        (
            ("--replicas", "2", "--rate", "4,1e-9"),
            "once in 0.05: 160,000,000,000 times, 50,000,000 are the most",
        ),
        (
            ("--documents", "0.5:1024"),
            "--documents: whoever has 1,024 tokens before his prompt is left out: in all 1,023 are the most",
        ),
        (
            ("--hot", "1:1000000000000"),
            "--hot: whoever has 1,000,000,000,000 tokens before his prompt is left out",
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


def test_copies_are_bounded_by_what_they_are_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"id": "s", "block_size": 64, "tool_tokens": 0, "system_tokens": 0}
    requests = [{"t": at, "in": 64, "out": 1, "hash_ids": [at]} for at in (1, 2)]
    (tmp_path / "a.jsonl").write_text(json.dumps({**session, "requests": requests}))
    asked = (str(tmp_path / "a.jsonl"), "--format", "agentic", *SMALL, "--copies")
    told = CliRunner().invoke(main, [*asked, "100001"])
    assert (told.exit_code, told.output) == (
        2,
        "Error: --copies: 100,001 of 2 requests are 200,002, 200,000 are the most: each takes some 25 KB of "
        "memory, in every process of --jobs\n",
    )
    monkeypatch.setattr(formats, "MOST_COPIED", 6)
    assert CliRunner().invoke(main, [*asked, "3"]).exit_code == 0
    assert CliRunner().invoke(main, [*asked, "4"]).exit_code == 2


def test_no_more_processes_are_started_than_there_is_work_for(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    honest = batch.completed

    def counted(call: Any, arguments: Any, jobs: int) -> Any:
        seen.append(jobs)
        return honest(call, arguments, jobs)

    monkeypatch.setattr(batch, "completed", counted)
    asked = (str(traces / "t.csv"), "--format", "csv", *SMALL, "--policy", "product", "--jobs", "1000000000")
    told = CliRunner().invoke(main, asked)
    # the floor's, and its own
    assert (told.exit_code, seen) == (0, [2])


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
