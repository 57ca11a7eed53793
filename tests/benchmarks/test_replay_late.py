"""Who is later than the target, by hand, and the command that lists them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.replay import late
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nosuch", "--blocks", "1", "--rate", "1"], "no experiment nosuch; there are conversation-8, "),
        (
            ["agentic-8", "--blocks", "5", "--rate", "2"],
            "agentic-8 has blocks 850, 1700, 3400 and rates 2, 4, 5",
        ),
        (["agentic-8", "--blocks", "850", "--rate", "2", "--policy", "nosuch"], "nosuch"),
    ],
)
def test_a_mistake_says_what_there_is(given: list[str], said: str) -> None:
    told = CliRunner().invoke(main, given)
    assert told.exit_code == 2
    assert said in told.output
