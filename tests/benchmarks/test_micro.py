"""The microbenchmarks run, and their figures are figures."""

import pytest

from benchmarks import micro


@pytest.mark.parametrize("step", ["keys", "match", "events", "scores"])
def test_each_step_gives_rows(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "BATCH_S", 0.0)
    rows = list(micro.STEPS[step]())
    assert rows
    assert all(p50 > 0 and p99 > 0 for _, _, p50, p99 in rows)


def test_next_turns_cost_less_than_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "BATCH_S", 0.0)
    cost = {step: p50 for step, _, p50, _ in micro.tokens()}
    whole = cost["tokenise a chat of about 8,000 tokens, new text"]
    assert cost["tokenise its next turn, 8,000 tokens before"] < whole / 2
