"""The simulated twin: what it says, and how it passes the time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.types import CacheScope
from workers.sim import SimRunner
from workers.timing import LinearTiming
from workers.types import SamplingParams, StepItem

SCOPE = CacheScope("m")


def item(tokens: tuple[int, ...], start: int, table: list[int], **sampling: Any) -> StepItem:
    return StepItem("a", tokens, start, table, SamplingParams(**sampling), samples=True)


def runner(**options: Any) -> SimRunner:
    settings: dict[str, Any] = {"num_blocks": 32, "block_size": 16, "vocab_size": 1_000}
    return SimRunner(settings.pop("timing", LinearTiming()), **{**settings, **options})


def said(sim: SimRunner, *items: StepItem) -> list[int | None]:
    return [s and s.token_id for s in sim.execute(items)]


PROMPT = tuple(range(100, 140))


def test_a_prompt_is_continued_alike_in_chunks_in_other_blocks_and_from_shared_ones() -> None:
    whole = said(runner(), item(PROMPT, 0, [0, 1, 2]))
    chunked = runner()
    for start, end in ((0, 5), (5, 16), (16, 37), (37, 40)):
        last = said(chunked, item(PROMPT[start:end], start, [9, 4, 7]))
    assert last == whole
    # blocks 9 and 4 hold the first 32 tokens: another sequence reads them
    assert said(chunked, item(PROMPT[32:], 32, [9, 4, 11])) == whole


def test_another_token_or_another_seed_is_continued_otherwise() -> None:
    whole = said(runner(), item(PROMPT, 0, [0, 1, 2]))
    assert said(runner(), item((99, *PROMPT[1:]), 0, [0, 1, 2])) != whole
    assert said(runner(seed=1), item(PROMPT, 0, [0, 1, 2])) != whole


def test_a_wrong_block_table_is_noticed_in_the_tokens() -> None:
    sim = runner()
    right = said(sim, item(PROMPT, 0, [0, 1, 2]))
    said(sim, item(tuple(range(500, 532)), 0, [3, 4]))
    assert said(sim, item(PROMPT[32:], 32, [0, 4, 5])) != right


def test_a_sampling_seed_matters_unless_greedy() -> None:
    plain = said(runner(), item(PROMPT, 0, [0, 1, 2], temperature=1.0, seed=1))
    assert said(runner(), item(PROMPT, 0, [0, 1, 2], temperature=1.0, seed=2)) != plain
    greedy = said(runner(), item(PROMPT, 0, [0, 1, 2], temperature=0, seed=1))
    assert said(runner(), item(PROMPT, 0, [0, 1, 2], temperature=0, seed=2)) == greedy


def test_tokens_are_drawn_from_the_allowed_range_only() -> None:
    sim = runner(vocab_size=12, first_token_id=8, eos_token_ids=frozenset({9}))
    drawn = {said(sim, item((t,), 0, [0]))[0] for t in range(300)}
    assert drawn == {8, 10, 11}


def test_no_token_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token"):
        runner(vocab_size=3, first_token_id=2, eos_token_ids=frozenset({2}))


def test_lengths_follow_the_mean_and_ignore_eos() -> None:
    sim = runner(eos_token_ids=frozenset({2}), mean_output_tokens=10)
    ends = [said(sim, item((t,), 0, [0]))[0] == 2 for t in range(4_000)]
    # 400 expected, standard deviation 19
    assert 300 < sum(ends) < 500
    assert not any(said(sim, item((t,), 0, [0], ignore_eos=True))[0] == 2 for t in range(300))
    assert not any(said(sim, item((t,), 0, [0], min_tokens=1))[0] == 2 for t in range(300))
    assert any(said(sim, item((t,), 0, [0]))[0] == 2 for t in range(300))


class Clock:
    """Time passes by sleeping, `late` seconds too long each time."""

    def __init__(self, late: float = 0.0) -> None:
        self.now = 100.0
        self.late = late
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def timed(clock: Clock, timing: LinearTiming, **options: Any) -> SimRunner:
    return SimRunner(
        timing, num_blocks=32, block_size=16, vocab_size=99, clock=clock, sleep=clock.sleep, **options
    )


def test_a_step_lasts_as_long_as_modelled() -> None:
    clock = Clock()
    sim = timed(clock, LinearTiming(prefill_token_s=0.001, step_s=0.01))
    sim.execute([item(PROMPT, 0, [0, 1, 2])])
    assert clock.slept == [pytest.approx(0.05)]


def test_time_scale_stretches_and_zero_does_not_sleep() -> None:
    clock = Clock()
    timed(clock, LinearTiming(step_s=0.01), time_scale=0.5).execute([item(PROMPT, 0, [0, 1, 2])])
    timed(clock, LinearTiming(step_s=0.01), time_scale=0).execute([item(PROMPT, 0, [0, 1, 2])])
    assert clock.slept == [pytest.approx(0.005)]


def test_short_steps_and_late_wakes_sum_up_to_the_model() -> None:
    clock = Clock(late=0.0002)
    sim = timed(clock, LinearTiming(step_s=0.0003))
    for _ in range(1_000):
        sim.execute([item((5,), 0, [0])])
    assert clock.now - 100 == pytest.approx(0.3, abs=0.001)
