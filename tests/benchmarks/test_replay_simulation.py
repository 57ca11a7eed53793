"""Replays whose every figure can be computed by hand: 1 ms a prefilled token, 10 ms a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from benchmarks.replay.cases import Case, policies_named, policy_and_params, profiles_of, run_case
from benchmarks.replay.content import Content
from benchmarks.replay.floor import PooledFleet
from benchmarks.replay.simulation import Run, Setup, Simulation
from gateway.routing.policy import Policy
from gateway.routing.registry import make_policy
from workers.profiles import Profile, profile_named

Toy = Callable[..., Content]


def profile(blocks: int) -> Profile:
    named = profile_named("1ms-per-token,10ms-per-step")
    return replace(named, num_blocks=blocks, max_model_len=blocks * 16)


def replayed(content: Content, policy: str, workers: int = 2, blocks: int = 64, replicas: int = 1) -> Run:
    def new(random: Random) -> Policy:
        return make_policy(policy, random=random)

    return Simulation(content, Setup([profile(blocks)] * workers, 1.0, replicas=replicas), new).run()


def test_one_request_takes_its_prefill_and_its_steps(toy: Toy) -> None:
    (only,) = replayed(toy([(0.0, "a b", 3, None)]), "estimated_ttft").outcomes
    # 33 tokens and a step, then two steps more
    assert only.ttft == pytest.approx(0.043)
    assert only.finished == pytest.approx(0.063)
    assert only.tpot == pytest.approx(0.010)
    assert (only.cached_tokens, only.promised_tokens) == (0, 0)


def test_a_prefix_is_promised_and_delivered_where_it_is(toy: Toy) -> None:
    run = replayed(toy([(0.0, "a b", 1, None), (1.0, "a b c", 1, None)]), "estimated_ttft")
    first, second = run.outcomes
    assert second.worker == first.worker
    assert (second.promised_tokens, second.cached_tokens) == (32, 32)
    # c and the last token: 17 of 49
    assert second.ttft == pytest.approx(0.027)


def test_a_busy_holder_loses_to_an_idle_stranger(toy: Toy) -> None:
    letters = " ".join(f"x{i}" for i in range(20))
    run = replayed(
        toy([(0.0, "a", 1, None), (1.0, f"a {letters}", 1, None), (1.01, "a", 1, None)]), "product"
    )
    first, long, last = run.outcomes
    assert long.worker == first.worker
    assert last.worker != first.worker
    assert last.ttft == pytest.approx(0.027)


def test_an_answer_fills_blocks_that_the_next_turn_finds(toy: Toy) -> None:
    """Prompt: 17 tokens. With 32 of the answer that is 49, of which the last has no K/V when it ends: three
    full blocks, and the next turn's prompt of four repeats them."""
    content = toy([(0.0, "a", 32, None), (5.0, "a b c d", 1, 0)])
    _first, second = replayed(content, "estimated_ttft").outcomes
    assert second.cached_tokens == 48


def test_a_next_turn_waits_for_its_answer(toy: Toy) -> None:
    content = toy([(0.0, "a", 100, None), (0.5, "a b", 1, 0)])
    first, second = replayed(content, "round_robin").outcomes
    assert first.finished == pytest.approx(0.027 + 99 * 0.010)
    assert second.arrived == pytest.approx(first.finished or 0.0)


def test_the_floor_finds_every_prefix_on_every_engine(toy: Toy) -> None:
    """Both engines are busy with strangers' prompts; whoever takes the third finds a on the other."""
    content = toy([(0.0, "a", 1, None), (0.0, "b", 1, None), (1.0, "a", 1, None), (1.0, "a", 1, None)])
    run = PooledFleet(content, Setup([profile(64)] * 2, 1.0)).run()
    assert [outcome.cached_tokens for outcome in run.outcomes] == [0, 0, 16, 16]
    assert {outcome.worker for outcome in run.outcomes[2:]} == {0, 1}
    assert run.outcomes[3].ttft == pytest.approx(0.010)  # one token and its step, at the decoder's price


def test_the_floor_lends_all_blocks_to_one_engine(toy: Toy) -> None:
    letters = " ".join(f"x{i}" for i in range(5))
    content = toy([(0.0, letters, 1, None), (1.0, "a b c", 1, None), (2.0, letters, 1, None)])
    run = PooledFleet(content, Setup([profile(6)] * 2, 1.0)).run()
    assert run.outcomes[2].cached_tokens == 80


def test_replicas_share_what_they_know(toy: Toy) -> None:
    requests = [(float(i), "a b c", 1, None) for i in range(20)]
    together = replayed(toy(requests), "estimated_ttft", workers=4, replicas=3)
    assert [outcome.cached_tokens for outcome in together.outcomes[1:]] == [48] * 19


def test_replicas_that_share_nothing_compute_it_again(toy: Toy) -> None:
    content = toy([(float(i), "a b c", 1, None) for i in range(40)])
    setup = Setup([profile(64)] * 4, 1.0, replicas=3, shared=False)
    run = Simulation(content, setup, lambda random: make_policy("estimated_ttft", random=random)).run()
    misses = [outcome for outcome in run.outcomes if not outcome.cached_tokens]
    assert len({outcome.worker for outcome in run.outcomes}) == len(misses) > 1


def test_whoever_would_be_late_is_refused_and_counted(toy: Toy) -> None:
    def prompt(name: str) -> str:
        return " ".join(f"{name}{i}" for i in range(32))

    # eight of 513 tokens, one after another, show 513 tokens in 523 ms
    known = [(float(i), prompt(f"k{i}_"), 1, None) for i in range(8)]
    # behind the ninth the tenth would wait 2 × 0.523 s; its next turn comes all the same
    asked = [(10.0, prompt("a"), 1, None), (10.1, prompt("b"), 1, None), (10.6, prompt("c"), 1, None)]
    content = toy([*known, *asked, (12.0, prompt("b") + " b", 1, 9)])
    case = Case("least_requests", 1, 256, content.trace.rate, "1ms-per-token,10ms-per-step", max_ttft_s=1.0)
    row = run_case(content, case)
    assert (row["requests"], row["refused"], row["max_ttft_s"]) == (11, 1, 1.0)
    assert row["ttft_p99_s"] == pytest.approx(0.539)  # the next turn's, of 529 tokens
    everybody = run_case(content, replace(case, max_ttft_s=0.0))
    assert (everybody["requests"], everybody["refused"]) == (12, 0)
    # the tenth ends at 11.046 s, the eleventh of 10.6 s after it
    assert everybody["ttft_p99_s"] == pytest.approx(0.969)


def test_the_same_seed_gives_the_same_run(toy: Toy) -> None:
    content = toy([(i * 0.01, f"a b{i % 3} c{i % 7}", 4, None) for i in range(60)])
    one, two = (replayed(content, "power_of_two", workers=4) for _ in range(2))
    assert one == two


def test_a_row_has_what_was_asked_and_what_came_out(toy: Toy) -> None:
    content = toy([(0.0, "a b", 1, None), (1.0, "a b", 1, None)])
    case = Case("estimated_ttft", 2, 64, rate=2.0, profile="1ms-per-token,10ms-per-step")
    row = run_case(content, case)
    assert row["default"] is True
    assert row["requests"] == 2
    assert row["hit_rate"] == pytest.approx(32 / 66, abs=1e-6)
    assert row["balance"] == pytest.approx(2.0)  # one worker did it all
    assert row["ttft_p99_s"] == pytest.approx(0.043)
    assert row["goodput_rps"] == pytest.approx(2.0)


def test_engines_of_several_kinds() -> None:
    case = Case("floor", 3, 64, rate=1.0, profile="h100-8b*2+l4-8b*1")
    assert [p.name for p in profiles_of(case, 16)] == ["h100-8b", "h100-8b", "l4-8b"]
    with pytest.raises(ValueError, match="are 2 engines, 3 are asked for"):
        profiles_of(replace(case, profile="h100-8b*2"), 16)
    with pytest.raises(ValueError, match=r"how many of 'h100-8b'\?"):
        profiles_of(replace(case, profile="h100-8b+l4-8b*1"), 16)


def test_policies_as_people_name_them() -> None:
    assert policies_named("all")[:2] == ["floor", "estimated_ttft"]
    assert policies_named("product,explore") == ["product", "explore"]
    assert policies_named("estimated_ttft:work_weight=1;product") == [
        "estimated_ttft:work_weight=1",
        "product",
    ]
    assert policy_and_params("x:a=1,b=2.5,c=d") == ("x", {"a": 1.0, "b": 2.5, "c": "d"})
