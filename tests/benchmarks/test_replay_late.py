"""Who is later than the target, by hand, and the command that lists them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.replay import late
from benchmarks.replay.cases import Source
from benchmarks.replay.grid import Experiment, full
from benchmarks.replay.late import late_of, main
from benchmarks.replay.outcome import Outcome


def outcome(arrived: float, ttft: float) -> Outcome:
    return Outcome(1000, 10, arrived, 0, first_token=arrived + ttft, finished=arrived + ttft + 1)


def test_late_is_who_takes_more_than_the_target_and_the_first_to_come_is_first() -> None:
    floor = [outcome(float(n), 1.0) for n in range(98)] + [outcome(98.0, 2.0), outcome(99.0, 9.0)]
    # of a hundred, p99 is the second largest: 2.0, and 2.1 is the most that is not late
    ours = [outcome(float(n), 1.0) for n in range(98)] + [outcome(98.0, 2.1), outcome(99.0, 9.5)]
    ours[40] = outcome(40.0, 2.11)
    assert [(one.seed, one.number, one.floor_s, one.is_late_there) for one in late_of(7, floor, ours)] == [
        (7, 40, 1.0, False),
        (7, 99, 9.0, True),
    ]


def test_the_command_lists_them_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = full()["agentic-8"]
    small = Experiment(
        late.replace(usual.source, limit=60), 2, (850,), (2,), ("floor", "estimated_ttft"), (0, 1)
    )
    monkeypatch.setattr(late, "full", lambda: {"small": small})
    told = CliRunner().invoke(main, ["small", "--blocks", "850", "--rate", "2", "--policy", "round_robin"])
    assert told.exit_code == 0, told.output
    lines = [line for line in told.output.splitlines() if line.startswith(("│ 0", "│ 1"))]
    assert len(lines) > 2
    assert f"{len(lines)} of 120 requests are late where 1 may be; " in told.output


def test_slices_are_the_experiments_where_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 ms a token, 10 ms a step. Speeds are learned from eight of 513 tokens; then comes one of 40,001, and
    0.1 s later one of 17."""

    def line(arrival: float, tokens: int, name: str) -> str:
        blocks = " ".join(f"{name}{number}" for number in range(-(-tokens // 16)))
        return f"{arrival},{tokens},1,{blocks},{name}"

    known = [line(i, 513, f"k{i}_") for i in range(8)]
    body = [*known, line(9.9, 40_001, "a"), line(10.0, 17, "b")]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,block_ids,session", *body]))
    one = Experiment(
        Source(str(path), "csv"),
        1,
        (9000,),
        (1.0,),
        ("floor",),
        profiles=("1ms-per-token,10ms-per-step,max_num_batched_tokens=65536",),
        slice_after_s=5.0,
    )
    monkeypatch.setattr(late, "full", lambda: {"e": one})

    def last_line(*given: str) -> str:
        told = CliRunner().invoke(main, ["e", "--blocks", "9000", "--rate", "1", *given])
        assert told.exit_code == 0, told.output
        return told.output.splitlines()[-1]

    # alone it takes 40.011 s, as it does at the floor and in one piece
    whole = last_line("--slice-after", "0")
    assert whole.endswith("; the latest takes 40.01 s, the floor's 40.01")
    # in three slices two steps more, and the other's 27 ms
    assert last_line().endswith("; the latest takes 40.06 s, the floor's 40.01")
    assert last_line("--slice-after", "2.5") == last_line()
    assert last_line("--slice-after", "60") == whole


def test_what_cannot_be_replayed_is_said() -> None:
    asked = ["agentic-8", "--blocks", "850", "--rate", "2", "--policy", "hindsight", "--slice-after", "5"]
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 2
    assert "what the foresight expects of queues holds for prompts in one piece" in told.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nosuch", "--blocks", "1", "--rate", "1"], "no experiment nosuch; there are conversation-8, "),
        (
            ["agentic-8", "--blocks", "5", "--rate", "2"],
            "agentic-8 has blocks 850, 1700, 3400 and rates 2, 4, 5",
        ),
        (["agentic-8", "--blocks", "850", "--rate", "2", "--policy", "nosuch"], "nosuch"),
        (
            ["agentic-8", "--blocks", "850", "--rate", "2", "--slice-after", "-1"],
            "Invalid value for '--slice-after': -1.0 is not in the range x>=0",
        ),
    ],
)
def test_a_mistake_says_what_there_is(given: list[str], said: str) -> None:
    told = CliRunner().invoke(main, given)
    assert told.exit_code == 2
    assert said in told.output
