"""A router that knows who will come back when; every figure by hand: 1 ms a prefilled token, 10 ms a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.replay.cases import Case, profiles_of, run_case
from benchmarks.replay.content import Content
from benchmarks.replay.hindsight import Foresight, Queue, best_in_hindsight
from benchmarks.replay.simulation import Setup
from gateway.fleet.load import WorkerLoad
from gateway.routing.policy import RequestShape
from gateway.types import WorkerId
from workers.timing import LinearTiming

Toy = Callable[..., Content]
TIMING = LinearTiming(prefill_token_s=0.001, step_s=0.010)
PROFILE = "1ms-per-token,10ms-per-step"


def two_idle() -> list[WorkerLoad]:
    return [WorkerLoad(WorkerId("a")), WorkerLoad(WorkerId("b"))]


def test_a_queue_gets_shorter_as_time_passes() -> None:
    queue = Queue()
    queue.add(1, 2.0, now=10.0)
    queue.add(2, 3.0, now=11.0)
    assert queue.wait(11.0) == 4.0
    queue.remove(1, now=12.5)  # half a second late
    assert (queue.wait(12.5), queue.wait(13.5), queue.wait(20.0)) == (3.0, 2.0, 0.0)
    queue.remove(1, now=14.0)  # its later tokens say nothing of the others
    assert queue.wait(13.5) == 2.0
    queue.remove(2, now=15.0)
    assert queue.wait(15.0) == 0.0


def test_whoever_comes_back_during_a_prefill_is_part_of_its_cost() -> None:
    eye = Foresight([TIMING, TIMING], arrivals={7: 100.5, 8: 109.0})
    eye.now = 100.0
    eye.coming[0] |= {7, 8}
    # 990 ms and a step: a second squared, and once as it is; one comes back in its middle, one long after it
    costs = eye.score(RequestShape(prompt_tokens=990), two_idle(), [0, 0])
    assert costs == pytest.approx([1.0 + 1.0 + 0.25, 1.0 + 1.0])
    # behind another second: to 2 s and from 0.5 s, when it would have waited 0.5 s anyway
    eye.queues[0].add(1, 1.0, now=100.0)
    costs = eye.score(RequestShape(prompt_tokens=990), two_idle(), [0, 0])
    assert costs == pytest.approx([4.0 + 1.0 + 1.5**2 - 0.5**2, 2.0])


def test_what_must_end_first_costs_as_if_it_were_computed() -> None:
    eye = Foresight([TIMING, TIMING], arrivals={})
    full, roomy = two_idle()
    full.capacity_tokens, full.context_tokens, full.requests = 1000, 500, 1
    # 490 tokens too many, but half a thousand must end: 510 ms squared
    assert eye.score(RequestShape(prompt_tokens=990), [full, roomy], [0, 0]) == pytest.approx([2.2601, 2.0])


def test_who_knows_that_somebody_comes_back_keeps_its_worker_free(toy: Toy) -> None:
    # x holds worker A and comes back at 1.01 s; y, of 641 tokens, comes at 1 s and goes to either
    long = " ".join(f"y{i}" for i in range(40))
    content = toy([(0.0, "x1 x2", 1, None), (1.0, long, 1, None), (1.01, "x1 x2 x3", 1, 0)])
    case = Case("hindsight", 2, 64, rate=content.trace.rate, profile=PROFILE)
    setup = Setup(profiles=profiles_of(case, content.block_size), speed=1.0)
    x, y, again = best_in_hindsight(content, setup, runs=1).outcomes
    assert (again.worker, y.worker) == (x.worker, 1 - x.worker)
    assert again.ttft == pytest.approx(0.010 + 0.017)  # 32 of 49 tokens lay there
    assert y.ttft == pytest.approx(0.010 + 0.641)
    row = run_case(content, case)
    assert (row["policy"], row["default"]) == ("hindsight", False)
    assert row["ttft_p99_s"] == pytest.approx(0.651)


def test_of_several_runs_the_best_counts(toy: Toy) -> None:
    later = [(i * 0.03, f"a b{i % 3} c{i % 7}", 4, i - 10 if i % 10 > 6 else None) for i in range(10, 60)]
    content = toy([(i * 0.03, f"a b{i % 3} c{i % 7}", 4, None) for i in range(10)] + later)
    setup = Setup(profiles=profiles_of(Case("floor", 3, 64, 1.0, PROFILE), 16), speed=1.0)

    def p99(runs: int) -> float:
        return max(outcome.ttft for outcome in best_in_hindsight(content, setup, runs=runs).outcomes)

    assert p99(4) <= p99(2) <= p99(1)


def test_replicas_share_no_foresight(toy: Toy) -> None:
    content = toy([(0.0, "a", 1, None), (1.0, "b", 1, None)])
    with pytest.raises(ValueError, match="2 replicas cannot share one foresight"):
        run_case(content, Case("hindsight", 2, 64, 1.0, PROFILE, replicas=2))
    with pytest.raises(ValueError, match="refuses nobody"):
        run_case(content, Case("hindsight", 2, 64, 1.0, PROFILE, max_ttft_s=1.0))
    with pytest.raises(ValueError, match="holds for prompts in one piece"):
        run_case(content, Case("hindsight", 2, 64, 1.0, PROFILE, slice_after_s=1.0))
