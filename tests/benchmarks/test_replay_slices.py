"""Prompts in slices, in virtual time; every figure by hand: 1 ms a prefilled token, 10 ms a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from benchmarks.replay.cases import Case, run_case
from benchmarks.replay.content import Content
from benchmarks.replay.engines import Timeline
from benchmarks.replay.outcome import Outcome
from benchmarks.replay.simulation import Setup, Simulation
from benchmarks.replay.slices import SlicedPrompts
from gateway.fleet.load import Lease, WorkerLoad
from gateway.routing.policy import Policy
from gateway.routing.registry import make_policy
from gateway.routing.route import Route
from gateway.routing.slicing import NO_SLICING, Plan, Slicing
from gateway.types import BlockKey, WorkerId
from workers.profiles import profile_named

Toy = Callable[..., Content]
Asked = tuple[float, str, int, int | None]
WORKER = WorkerId("w")
PROFILE = "1ms-per-token,10ms-per-step"
SLICES = Slicing(after_s=2.0, tokens=512)
OWN_S = 0.523 / 513
"""What a token seems to take by itself, from those that are `known`."""


def letters(name: str, count: int) -> str:
    return " ".join(f"{name}{number}" for number in range(count))


def known() -> list[Asked]:
    """Eight of 513 tokens, one after another: from fewer nobody learns a speed."""
    return [(float(i), letters(f"k{i}_", 32), 1, None) for i in range(8)]


def replayed(
    toy: Toy, asked: Sequence[Asked], slicing: Slicing = SLICES, workers: int = 1, blocks: int = 600
) -> list[Outcome]:
    """Of `asked` alone."""
    profile = replace(profile_named(PROFILE), num_blocks=blocks, max_model_len=blocks * 16)

    def new(random: Random) -> Policy:
        return make_policy("estimated_ttft", random=random)

    setup = Setup([profile] * workers, 1.0, slicing=slicing)
    return Simulation(toy([*known(), *asked]), setup, new).run().outcomes[8:]


def test_a_short_prompt_waits_for_one_slice_and_not_for_the_whole(toy: Toy) -> None:
    asked = [(10.0, letters("a", 160), 1, None), (10.1, "b", 1, None)]
    long, short = replayed(toy, asked, NO_SLICING)
    # 2,561 tokens and a step; then the other's 17 and one more
    assert long.ttft == pytest.approx(2.571)
    assert short.ttft == pytest.approx(2.571 - 0.1 + 0.027)
    long, short = replayed(toy, asked)
    # a slice of 512 and a step, the other, three slices more, and the last 513 tokens
    assert short.ttft == pytest.approx(0.522 - 0.1 + 0.027)
    assert long.ttft == pytest.approx(0.522 + 0.027 + 3 * 0.522 + 0.523)


def test_what_its_slices_computed_was_not_cached(toy: Toy) -> None:
    (long,) = replayed(toy, [(10.0, letters("a", 160), 1, None)])
    assert (long.promised_tokens, long.cached_tokens) == (0, 0)
    assert long.ttft == pytest.approx(4 * 0.522 + 0.523)
    # the first 512 are those of somebody before: three slices and the rest
    begun = f"{letters('k0_', 32)} {letters('a', 128)}"
    (long,) = replayed(toy, [(10.0, begun, 1, None)])
    assert (long.promised_tokens, long.cached_tokens) == (512, 512)
    assert long.ttft == pytest.approx(3 * 0.522 + 0.523)


def test_who_comes_back_finds_what_slices_computed(toy: Toy) -> None:
    asked = [(10.0, letters("a", 160), 1, None), (11.0, letters("a", 160) + " b", 1, 8)]
    _long, again = replayed(toy, asked)
    assert (again.promised_tokens, again.cached_tokens) == (2560, 2560)


def sliced(prompt_tokens: int, seconds: float) -> tuple[Plan, Route]:
    """Slices of 512 tokens, blocks of 16; nothing of it is cached."""
    return Plan(prompt_tokens, 0, seconds, tokens=512, block=16), routed(
        prompt_tokens, range(prompt_tokens // 16)
    )


def routed(prompt_tokens: int, keys: Sequence[int], matched_tokens: int = 0) -> Route:
    lease = Lease.take(WorkerLoad(WORKER), prompt_tokens=prompt_tokens, matched_tokens=matched_tokens)
    named = [[BlockKey(key) for key in keys]]
    return Route(WORKER, "", "", lease, prompt_tokens, matched_tokens, matched_tokens, named, "")


class Sent:
    """What one worker was asked for, and when."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.prompts = SlicedPrompts(1, self.timeline, self._send)
        self.sent: list[tuple[int, int | None, float]] = []

    def _send(self, number: int, tokens: int | None, now: float) -> None:
        self.sent.append((number, tokens, now))


def test_after_a_quarter_of_its_own_time_the_rest_goes_in_one_piece() -> None:
    """Somebody else waits all the time."""
    worker = Sent()
    prompts, at = worker.prompts, worker.timeline.at
    prompts.begin(0, 0, *sliced(2561, seconds=4.0), 10.0)
    at(10.1, lambda now: prompts.whole(1, 0, routed(17, [-1]), now))
    at(10.8, lambda now: prompts.slice_over(0, 512, 0, now))
    worker.timeline.run()
    # the slice was a fifth of it and should have taken 0.8 s, as it did; then a second and no more
    enough = pytest.approx(10.0 + 4.0 * 512 / 2561 + 1.0)
    assert worker.sent == [(0, 512, 10.0), (1, None, 10.1), (0, None, enough)]


def test_what_took_longer_by_a_quarter_yields_no_more_though_nobody_waits() -> None:
    worker = Sent()
    worker.prompts.begin(0, 0, *sliced(2561, seconds=4.0), 10.0)
    worker.timeline.at(11.9, lambda now: worker.prompts.slice_over(0, 512, 0, now))
    worker.timeline.run()
    assert worker.sent == [(0, 512, 10.0), (0, None, 11.9)]


def test_of_two_at_one_worker_the_second_waits_for_the_firsts_first_token() -> None:
    worker = Sent()
    prompts, at, computed = worker.prompts, worker.timeline.at, list[int]()
    prompts.begin(0, 0, *sliced(1025, seconds=8.0), 10.0)
    at(10.1, lambda now: prompts.begin(1, 0, *sliced(5000, seconds=80.0), now))
    at(11.0, lambda now: prompts.slice_over(0, 512, 0, now))
    at(12.0, lambda now: computed.append(prompts.answered(0, 0, now)))
    worker.timeline.run()
    assert worker.sent == [(0, 512, 10.0), (0, None, 11.0), (1, 512, 12.0)]
    assert computed == [512]


def test_who_was_promised_a_part_goes_when_that_is_there(toy: Toy) -> None:
    """And says nothing of speed, for it waited for no queue."""
    asked = [(10.0, letters("a", 160), 1, None), (10.1, letters("a", 64) + " b", 1, None)]
    long, sibling = replayed(toy, asked)
    assert (sibling.promised_tokens, sibling.cached_tokens) == (1024, 1024)
    # two slices, then b and the last token; the first has two slices more and 513 tokens
    assert sibling.ttft == pytest.approx(2 * 0.522 - 0.1 + 0.027)
    assert long.ttft == pytest.approx(2 * 0.522 + 0.027 + 2 * 0.522 + 0.523)
    worker = Sent()
    worker.prompts.begin(0, 0, *sliced(2561, seconds=4.0), 10.0)
    assert worker.prompts.whole(1, 0, routed(1041, range(64), 1024), 10.1) is False
    assert worker.prompts.whole(2, 0, routed(1041, [*range(63), -1], 1024), 10.1) is True


def test_a_long_sibling_follows_too(toy: Toy) -> None:
    shared = letters("a", 160)
    asked = [(10.0, shared, 1, None), (10.1, f"{shared} {letters('b', 64)}", 1, None)]
    # on two workers, so that one is without a queue
    first, second = replayed(toy, asked, replace(SLICES, after_s=1.0), workers=2)
    assert second.worker == first.worker
    assert first.ttft == pytest.approx(4 * 0.522 + 0.523)
    # it may yield 0.26 s, and the first one's last piece takes longer: so its 1,025 tokens go at once
    assert (second.promised_tokens, second.cached_tokens) == (2560, 2560)
    assert second.ttft == pytest.approx(first.ttft - 0.1 + 1.035)


def test_who_comes_later_than_that_waits_for_the_rest(toy: Toy) -> None:
    # longer ones than that would follow the first
    others = [(10.1, letters(name, 39), 1, None) for name in ("b", "d")]
    asked = [(10.0, letters("a", 160), 1, None), *others]
    # of 2,561 tokens 512 are there at 0.522, when the others' 1,250 begin: the rest is sent at this time
    enough = 2561 * OWN_S * (512 / 2561 + 0.25)
    assert enough == pytest.approx(1.175, abs=1e-3)
    long, other, _other, late = replayed(toy, [*asked, (11.3, "c", 1, None)])
    assert other.ttft == pytest.approx(0.522 - 0.1 + 1.260)
    # so the last, of 17 tokens, shares a step with the first's 2,049
    assert long.ttft == pytest.approx(0.522 + 1.260 + 2.076)
    assert late.ttft == pytest.approx(long.ttft - 1.3)


def test_long_ones_come_in_order_of_arrival() -> None:
    worker = Sent()
    prompts, at = worker.prompts, worker.timeline.at
    prompts.begin(0, 0, *sliced(1025, seconds=8.0), 10.0)
    # of 641 tokens of its own, where a slice and a quarter are 640
    assert prompts.whole(1, 0, routed(641, range(40), 0), 10.1) is False
    assert prompts.whole(2, 0, routed(640, range(40), 0), 10.2) is True
    at(10.3, lambda now: prompts.answered(2, 0, now))
    at(11.0, lambda now: prompts.slice_over(0, 512, 0, now))
    worker.timeline.run()
    assert worker.sent == [(0, 512, 10.0), (2, None, 10.2), (0, None, 11.0), (1, None, 11.0)]


def test_a_worker_without_room_for_it_gets_it_whole(toy: Toy) -> None:
    asked = [(20.0, letters("a", 160), 1, None), (20.1, "b", 1, None)]
    # of 2,561 tokens, while an answer to 7,025 others is being written
    busy = [(9.0, letters("d", 439), 1500, None)]
    _busy, _long, short = replayed(toy, [*busy, *asked], blocks=(2561 + 7025) // 16 + 1)
    # a step of the other's is under way, and its tokens take part in all
    assert short.ttft == pytest.approx(0.522 - 0.1 + 0.027, abs=0.02)
    _busy, long, short = replayed(toy, [*busy, *asked], blocks=(2561 + 7025) // 16)
    # the other's answer ends 1,499 steps after its 7.035 s; then both share a step
    assert long.ttft == pytest.approx(9.0 + 7.035 + 14.990 - 20.0 + 2.588)
    assert short.ttft == pytest.approx(long.ttft - 0.1)


def test_nor_in_slices_where_it_needs_more_than_three_tenths_of_the_cache(toy: Toy) -> None:
    asked = [(10.0, letters("a", 160), 1, None), (10.1, "b", 1, None)]
    blocks = 533  # 8,528 tokens, where ten thirds of it are 8,537
    long, short = replayed(toy, asked, blocks=blocks)
    assert (long.ttft, short.ttft) == (pytest.approx(2.571), pytest.approx(2.571 - 0.1 + 0.027))
    long, short = replayed(toy, asked, blocks=blocks + 1)
    assert short.ttft == pytest.approx(0.522 - 0.1 + 0.027)


@pytest.mark.parametrize("after_s", [0.0, 60.0])
def test_where_nobody_takes_that_long_nothing_differs(toy: Toy, after_s: float) -> None:
    asked = [(10.0 + 0.05 * i, f"{letters('a', 20 * (i % 9))} b{i}", 3, None) for i in range(60)]
    assert replayed(toy, asked, Slicing(after_s, 512), workers=3) == replayed(
        toy, asked, NO_SLICING, workers=3
    )


def test_a_row_tells_of_it(toy: Toy) -> None:
    content = toy([*known(), (10.0, letters("a", 2500), 1, None), (10.1, "b", 1, None)])
    profile = f"{PROFILE},max_num_batched_tokens=65536"
    case = Case("estimated_ttft", 1, 9000, content.trace.rate, profile)
    row = run_case(content, case)
    assert (row["slice_after_s"], row["ttft_p99_s"]) == (0.0, pytest.approx(40.011))
    # of ten the second largest
    assert row["ttft_p90_s"] == pytest.approx(40.011 - 0.1 + 0.027)
    sliced = run_case(content, replace(case, slice_after_s=5.0))
    # slices of 16,000, and 8,001 at last
    assert (sliced["slice_after_s"], sliced["ttft_p99_s"]) == (5.0, pytest.approx(40.058))
    assert sliced["ttft_p90_s"] == pytest.approx(16.010 - 0.1 + 0.027)
    assert (sliced["hit_rate"], sliced["promise_error"]) == (row["hit_rate"], row["promise_error"]) == (0, 0)
