"""The microbenchmarks run, and their figures are figures."""

import pytest

from benchmarks import matching, micro, timing


@pytest.mark.parametrize("step", ["keys", "match", "maps", "events", "scores"])
def test_each_step_gives_rows(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BATCH_S", 0.0)
    monkeypatch.setattr(matching, "OTHERS", 1)
    monkeypatch.setattr(micro, "MANY", 1000)
    rows = list(micro.STEPS[step]())
    assert rows
    assert all(p50 > 0 and p99 > 0 for _, _, p50, p99 in rows)


def test_next_turns_cost_less_than_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BATCH_S", 0.0)
    cost = {step: p50 for step, _, p50, _ in micro.tokens()}
    whole = cost["the same by Hugging Face's library, 8,000 tokens"]
    assert cost["tokenise its next turn, 8,000 tokens before"] < whole / 2


def test_the_page_judges_what_has_a_target() -> None:
    rows = [
        (micro.NEXT_TURN, "µs", 150.0, 300.0),
        (micro.HARDEST, "µs", 250.0, 300.0),
        ("the same, as blocks a second", "1/s", 160_000.0, 90_000.0),
        ("the same by Hugging Face's library, 8,000 tokens", "µs", 5000.0, 6000.0),
        ("tokenise its next turn, 8,000 tokens before", "µs", 250.0, 300.0),
    ]
    assert micro.page(rows, "Some machine.").splitlines()[7:] == [
        "",
        "| | target | reached | |",
        "|---|---|---|---|",
        f"| {micro.NEXT_TURN} | 200 µs | 150 µs | kept |",
        f"| {micro.HARDEST} | 200 µs | 250 µs | **missed** |",
        "| events applied | 150,000 blocks/s | 160,000 | kept |",
        "| next chat turn at 8,000 tokens | 0.1 × full encode, Hugging Face's | 0.050 × | kept |",
        "",
        "Some machine.",
    ]
