"""What no router can beat, computed by hand: 1 ms a prefilled token, 10 ms a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from benchmarks.replay.bounds import balance, balance_unknown, bounds, most_goodput, session_tokens
from benchmarks.replay.cases import Case, profiles_of, run_case
from benchmarks.replay.content import Content
from benchmarks.replay.least import least_seconds, reusable_blocks
from benchmarks.replay.outcome import summarise
from benchmarks.replay.simulation import Setup, Simulation
from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape
from workers.timing import LinearTiming

Toy = Callable[..., Content]
TIMING = LinearTiming(prefill_token_s=0.001, step_s=0.010)


def test_what_another_may_have_computed_is_free(toy: Toy) -> None:
    # the first two could come in either order; the third's c is its own
    content = toy([(0.0, "a b", 1, None), (1.0, "a b", 1, None), (2.0, "a c", 1, None)])
    assert reusable_blocks(content) == [2, 2, 1]
    # who comes first computes 33; the last token always (a single token is decoded at a step's price)
    assert least_seconds(content, [TIMING], 1.0) == pytest.approx([0.043, 0.010, 0.027])
    # 40 times as fast, the first may wait 25 ms for the second
    assert least_seconds(content, [TIMING], 40.0) == pytest.approx([0.035, 0.010, 0.027])


def test_to_wait_for_a_next_turn_takes_as_long_as_its_question_takes_to_come(toy: Toy) -> None:
    asked = [(0.0, "a b", 70, None), (0.2, "a b c d e f", 1, 0), (0.66, "a b c d e f", 1, None)]
    # a and b may be there from another, so the question may come at 0.010 + 69 × 0.010 s: 40 ms to wait, and
    # the last token; c to f and the last, 65 tokens, take 75 ms
    assert least_seconds(toy(asked), [TIMING], 1.0)[2] == pytest.approx(0.050)
    # with an answer of 80 tokens it would take 140 ms to come
    assert least_seconds(toy([(0.0, "a b", 80, None), *asked[1:]]), [TIMING], 1.0)[2] == pytest.approx(0.075)


def test_who_waits_for_an_answer_cannot_have_computed_the_question(toy: Toy) -> None:
    content = toy([(0.0, "a b", 1, None), (1.0, "a b c", 1, 0), (2.0, "a b c d", 1, 1)])
    # each turn finds the one before; the first finds nothing, though both others hold a and b
    assert reusable_blocks(content) == [0, 2, 3]


def test_a_stranger_may_have_computed_what_a_next_turn_repeats(toy: Toy) -> None:
    content = toy([(0.0, "a b", 1, None), (1.0, "a b c", 1, 0), (2.0, "a", 1, None)])
    assert reusable_blocks(content) == [1, 2, 1]


def test_the_fastest_kind_of_engine_counts(toy: Toy) -> None:
    content = toy([(0.0, "a", 1, None)])
    assert least_seconds(content, [TIMING, LinearTiming(0.0005, 0.0)], 1.0) == pytest.approx([0.0085])


def test_quantiles_and_what_can_be_good(toy: Toy) -> None:
    long = " ".join(f"x{i}" for i in range(10))
    content = toy([(0.0, long, 1, None), (1.0, "a", 1, None), (2.0, "b", 1, None)])
    found = bounds(content, [TIMING], 1.0, 0.1, 2)
    assert found.ttft_p50_s == pytest.approx(0.027)
    assert found.ttft_p99_s == pytest.approx(0.171)
    assert (found.later_than(0.03), found.later_than(0.02), found.later_than(0.2)) == (1, 3, 0)
    # the last comes after 2 s, and of the three the first is late
    assert found.goodput_rps == pytest.approx(1.0)
    # 161 tokens, and twice 17 elsewhere
    assert found.balance_as_they_come == found.balance_sorted == pytest.approx(161 * 2 / 195)


def test_a_next_turn_comes_no_earlier_than_its_answer(toy: Toy) -> None:
    # 33 tokens and a step, 70 more steps, and it is asked
    content = toy([(0.0, "a b", 71, None), (0.1, "a b c", 1, 0)])
    assert bounds(content, [TIMING], 1.0, 5.0, 2).goodput_rps == pytest.approx(2 / 0.743)
    # twice as fast, and the answer takes as long
    assert bounds(content, [TIMING], 2.0, 5.0, 2).goodput_rps == pytest.approx(2 / 0.743)


def test_goodput_is_counted_over_nine_tenths_however_late_their_last_comes() -> None:
    # nine in 8 s or ten in 9, of which the one at 3 s is late
    assert most_goodput([float(n) for n in range(10)], [3.0]) == pytest.approx(1.0)
    # nine in 8 s, or ten in 8.5
    assert most_goodput([*map(float, range(9)), 8.5], []) == pytest.approx(10 / 8.5)
    # the late one has not come by then
    assert most_goodput([*map(float, range(9)), 20.0], [20.0]) == pytest.approx(9 / 8)
    assert most_goodput([1.0, 1.0], []) == 0.0


def test_a_session_that_stays_is_computed_once(toy: Toy) -> None:
    content = toy([(0.0, "a b", 1, None), (1.0, "a", 1, None), (2.0, "a b c", 1, 0), (3.0, "a b c d", 1, 2)])
    # 33, then c and the last token, then d and the last token; the stranger has its own a
    assert session_tokens(content) == [33 + 17 + 17, 17]


def test_sessions_begin_where_least_was_prefilled(toy: Toy) -> None:
    # 33 | 17, then 33 | 17 + 17; its next turn, four blocks of which one is held and the last: 33 | 34 + 49
    content = toy([(0.0, "a b", 1, None), (1.0, "c", 1, None), (2.0, "d", 1, None), (3.0, "d e f g", 1, 2)])
    assert balance_unknown(content, 2) == pytest.approx(83 * 2 / 116)
    # who begins where others were finds what they have in common
    content = toy([(0.0, "a b", 1, None), (1.0, "c", 1, None), (2.0, "c d e", 1, None), (3.0, "f", 1, None)])
    assert balance_unknown(content, 2) == pytest.approx(50 * 2 / 100)


def test_balance_of_what_cannot_be_divided() -> None:
    # 3 | 3, then 3 + 4 | 3; and 4 | 3, then 4 | 6
    assert balance([3, 3, 4], 2) == pytest.approx(7 * 2 / 10)
    assert balance([4, 3, 3], 2) == pytest.approx(6 * 2 / 10)
    assert balance([5], 4) == 4.0
    assert balance([], 4) == 0.0


@pytest.mark.parametrize("policy", ["floor", "estimated_ttft", "round_robin"])
def test_nobody_is_better(toy: Toy, policy: str) -> None:
    later = [(i * 0.02, f"a b{i % 3} c{i % 7}", 4, i - 10 if i % 10 > 6 else None) for i in range(10, 60)]
    content = toy([(i * 0.02, f"a b{i % 3} c{i % 7}", 4, None) for i in range(10)] + later)
    limit = bounds(content, [TIMING], 50.0 / content.trace.rate, 0.03, 3)
    engine = "1ms-per-token,10ms-per-step"
    row = run_case(content, Case(policy, 3, 64, rate=50.0, profile=engine, slo_ttft_s=0.03))
    assert float(str(row["ttft_p50_s"])) >= limit.ttft_p50_s - 1e-9
    assert float(str(row["ttft_p99_s"])) >= limit.ttft_p99_s - 1e-9
    assert 0.0 < float(str(row["goodput_rps"])) <= limit.goodput_rps + 1e-9


class Assigned:
    """Whoever asks next goes to the next of these workers."""

    name = "assigned"

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = iter(workers)

    def score(
        self, request: RequestShape, loads: Sequence[WorkerLoad], matched_tokens: Sequence[int]
    ) -> list[float]:
        chosen = next(self._workers)
        return [float(worker != chosen) for worker in range(len(loads))]


def test_no_assignment_is_better_and_each_request_has_one_that_is_as_good(toy: Toy) -> None:
    asked = [(0.0, "a b", 1, None), (0.1, "a b c", 1, 0), (0.2, "a b", 1, None), (0.205, "a b e", 1, None)]
    content = toy([*asked, (0.21, "d", 1, None), (0.3, "a b c d", 1, 1)])
    profiles = profiles_of(Case("", 2, 64, 1.0, "1ms-per-token,10ms-per-step"), 16)
    least = least_seconds(content, [TIMING], 1.0)
    seen, goodput = [], []
    for workers in product(range(2), repeat=6):

        def assigned(_random: object, workers: tuple[int, ...] = workers) -> Assigned:
            return Assigned(workers)

        outcomes = Simulation(content, Setup(profiles, 1.0), assigned).run().outcomes
        seen.append([outcome.ttft for outcome in outcomes])
        told = summarise(outcomes, 2, slo_ttft_s=0.04, slo_tpot_s=0.1, busy_s=0.0, preemptions=0)
        goodput.append(told.goodput_rps)
    best = [min(ttfts) for ttfts in zip(*seen, strict=True)]
    # 33 tokens; c and the last; the last; e and the last; d and the last, twice
    assert least == pytest.approx([0.043, 0.027, 0.010, 0.027, 0.027, 0.027])
    assert best == pytest.approx(least)
    # six in 0.3 s, of which the first cannot be in time
    assert max(goodput) == pytest.approx(5 / 0.3)
    assert bounds(content, [TIMING], 1.0, 0.04, 2).goodput_rps == pytest.approx(5 / 0.3)
