"""What each policy's parameters may be, and that no request is lost at the ends of it."""

from collections.abc import Iterator
from itertools import combinations, product
from math import inf, isfinite, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.fleet.load import WorkerLoad
from gateway.fleet.worker import LEAST_WEIGHT, MOST_WEIGHT
from gateway.routing.choose import pick
from gateway.routing.policies import consistent_hash
from gateway.routing.policies.consistent_hash import ConsistentHash
from gateway.routing.policy import Committing, RequestShape
from gateway.routing.registry import POLICIES, make_policy
from gateway.routing.shadow import Shadow
from gateway.types import BlockKey, WorkerId

MILLION, BILLION = 1_000_000, 1_000_000_000
BOUNDS: dict[str, dict[str, tuple[int, int]]] = {
    "estimated_ttft": {
        "work_weight": (0, MILLION),
        "affinity_weight": (0, MILLION),
        "affinity_tokens": (0, BILLION),
        "long_wait_weight": (0, MILLION),
        "long_wait_tokens": (0, BILLION),
        "memory_weight": (0, MILLION),
        "balance_weight": (0, MILLION),
        "decode_weight": (0, MILLION),
        "request_tokens": (0, BILLION),
    },
    "additive": {"overlap_weight": (0, MILLION), "temperature": (0, MILLION)},
    "consistent_hash": {"load_factor": (1, MILLION), "prefix_blocks": (1, MILLION), "points": (1, 256)},
    "tree_threshold": {
        "cache_threshold": (0, MILLION),
        "abs_threshold": (0, BILLION),
        "rel_threshold": (0, MILLION),
    },
    "prefix_gate": {"gate": (0, BILLION), "deviations": (-1000, 1000)},
    "explore": {"exploit_above": (0, MILLION)},
}
WHOLE = {"prefix_blocks", "points", "abs_threshold", "gate"}
"""They count something."""
TINY = (5e-324, 1e-308)
EVERY_PARAM = [(policy, param) for policy, params in BOUNDS.items() for param in params]


@pytest.mark.parametrize(("policy", "param"), EVERY_PARAM)
def test_a_parameter_lies_within_its_bounds(policy: str, param: str) -> None:
    least, most = BOUNDS[policy][param]
    kind = "whole number" if param in WHOLE else "number"
    for value in (least, most):
        assert getattr(make_policy(policy, {param: value}, random=Random(1)), param) == value
    beyond = (least - 1, least - 1e-9, most + 1, most * (1 + 1e-9), 1e308, -1e308, 10**30)
    for wrong in (*beyond, inf, -inf, nan, True, "1", None):
        with pytest.raises(ConfigError) as caught:
            make_policy(policy, {param: wrong}, random=Random(1))
        said = f"policy {policy!r}: {param}={wrong!r} is no {kind} from {least:,} to {most:,}"
        assert (caught.value.message, caught.value.param) == (said, param)


def test_of_a_very_long_value_the_beginning_is_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy("prefix_gate", {"gate": 10**400}, random=Random(1))
    assert caught.value.message == (
        f"policy 'prefix_gate': gate=1{'0' * 39}… is no whole number from 0 to 1,000,000,000"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_parameter_has_bounds_and_the_docs_name_them(policy: str) -> None:
    made = make_policy(policy, random=Random(1))
    text = Path("docs/configuration.md").read_text()
    with pytest.raises(ConfigError) as caught:
        make_policy(policy, {"no such": 1}, random=Random(1))
    tunable = caught.value.message.partition("it has: ")[2]
    bounds = BOUNDS.get(policy, {})
    assert tunable == (", ".join(bounds) or "none")
    for param, (least, most) in bounds.items():
        row = f"| `{policy}` | `{param}` | {getattr(made, param):,} | {least:,} | {most:,} |"
        assert row.replace(".0 |", " |") in text


def busy_fleet() -> list[WorkerLoad]:
    """Idle, busy and overfull ones, quick and slow as far as weights allow."""
    figures: list[dict[str, Any]] = [
        {},
        {"prefill_rate": MOST_WEIGHT, "requests": 3, "waiting_tokens": 1000, "decoding_tokens": 500},
        {
            "prefill_rate": LEAST_WEIGHT, "requests": 4000, "peer_requests": 90_000, "waiting_tokens": 10**9,
            "peer_waiting_tokens": 10**9, "decoding_tokens": 10**9, "peer_decoding_tokens": 10**9,
            "context_tokens": 10**9, "peer_context_tokens": 10**9, "capacity_tokens": 400_000,
            "capacity_blocks": 25_000, "cached_blocks": 25_000,
        },
        {"requests": 1, "yielding_tokens": 10**7, "capacity_tokens": 400_000, "capacity_blocks": 25_000},
        {"waiting_tokens": 2 * 10**9, "capacity_tokens": 10**9, "context_tokens": 5},
    ]  # fmt: skip
    return [WorkerLoad(WorkerId(f"http://w{i}:1"), **given) for i, given in enumerate(figures)]


def extremes(policy: str) -> Iterator[dict[str, float]]:
    """Each parameter at both ends and next to zero, each two of them together, and all of them."""
    ends = {
        param: (least, most, *(TINY if least == 0 and param not in WHOLE else ()))
        for param, (least, most) in BOUNDS.get(policy, {}).items()
    }
    yield {}
    for param, values in ends.items():
        yield from ({param: value} for value in values)
    for pair in combinations(ends, 2):
        yield from (dict(zip(pair, values, strict=True)) for values in product(*(ends[p] for p in pair)))
    for end in (0, 1):
        yield {param: values[end] for param, values in ends.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_are_well_defined_at_the_ends_of_all_bounds(policy: str) -> None:
    keys = [BlockKey(i * 0x9E3779B97F4A7C15 % 2**64) for i in range(400)]
    shapes = [
        RequestShape(0),
        RequestShape(6400, keys=keys),
        RequestShape(6400, keys=keys, session="s"),
        RequestShape(10_000_000),
    ]
    for params in extremes(policy):
        made = make_policy(policy, params, random=Random(1))
        gains: list[float] = []
        shadow = Shadow(
            made, make_policy("product", random=Random(1)), lambda _, gain, g=gains: g.append(gain)
        )  # type: ignore[misc]
        for shape, matches in product(shapes, ([0] * 5, [1, 0, 1, 0, 0], [0, 0, 15 / 16, 0.5, 0])):
            fleet = busy_fleet()
            matched = [int(share * shape.prompt_tokens) for share in matches]
            scores = made.score(shape, fleet, matched)
            least = [score for score in scores if score != inf]
            # of power_of_two infinity says who was not drawn
            assert all(map(isfinite, scores if policy != "power_of_two" else least)), (params, scores)
            winner = pick(scores, fleet, matched, Random(1))
            assert scores[winner] == min(least), (params, scores)
            assert isinstance(shadow, Committing)
            shadow.chosen(shape, fleet, matched, winner)
        assert len(gains) == 12
        assert all(map(isfinite, gains))


def test_the_coldest_draw_is_none() -> None:
    fleet = [WorkerLoad(WorkerId(f"http://w{i}:1"), decoding_tokens=16 * i) for i in range(3)]
    for temperature in (5e-324, 1e-308, 1e-12):
        policy = make_policy("additive", {"temperature": temperature}, random=Random(1))
        # costs 0…2 blocks apart by halves of their spread, over 1e-9; the noise is below 40
        scores = policy.score(RequestShape(16), fleet, [0, 0, 0])
        assert scores == pytest.approx([0.0, 5e8, 1e9], abs=40)


def test_a_score_that_is_no_number_ranks_last_and_loses_no_request() -> None:
    fleet = [WorkerLoad(WorkerId(f"http://w{i}:1"), requests=3 - i) for i in range(3)]
    matched = [0, 0, 0]
    assert pick([nan, 2.0, 1.0], fleet, matched, Random(1)) == 2
    assert pick([2.0, nan, 1.0], fleet, matched, Random(1)) == 2
    assert pick([nan, -inf, nan], fleet, matched, Random(1)) == 1
    # where none is, load decides: the last has the fewest requests
    assert pick([nan, nan, nan], fleet, matched, Random(1)) == 2
    assert pick([inf, inf, inf], fleet, matched, Random(1)) == 2


def workers(*numbers: int) -> list[WorkerLoad]:
    return [WorkerLoad(WorkerId(f"http://w{n}:1")) for n in numbers]


def order(policy: ConsistentHash, fleet: list[WorkerLoad], session: str) -> list[WorkerId]:
    scores = policy.score(RequestShape(16, session=session), fleet, [0] * len(fleet))
    assert sorted(scores) == [float(i) for i in range(len(fleet))]
    return [load.worker for _, load in sorted(zip(scores, fleet, strict=True), key=lambda pair: pair[0])]


def test_a_ring_that_candidates_come_to_and_leave_is_as_one_of_theirs_alone() -> None:
    policy, random = ConsistentHash(points=20), Random(3)
    for _ in range(200):
        fleet = workers(*random.sample(range(12), random.randint(1, 12)))
        session = str(random.random())
        assert order(policy, fleet, session) == order(ConsistentHash(points=20), fleet, session)


def test_only_who_is_new_is_put_on_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counting(data: bytes, real: Any = consistent_hash.xxh3_64_intdigest) -> int:
        hashed.append(data)
        return int(real(data))

    monkeypatch.setattr(consistent_hash, "xxh3_64_intdigest", counting)
    policy = ConsistentHash(points=10)

    def places(*numbers: int) -> int:
        hashed.clear()
        order(policy, workers(*numbers), "s")
        return len(hashed) - 1  # the session is one

    assert places(*range(8)) == 80
    assert places(*range(8)) == 0
    assert places(1, 5) == 0  # the others are full
    assert places(*range(9)) == 10  # one joins
    assert places(*range(100, 109)) == 90  # all others now: both are known
    assert places(*range(9)) == 0
    assert (
        places(*range(200, 209)) == 90
    )  # of 27 known 18 may be: those that were not asked for are forgotten
    assert places(*range(200, 209)) == 0
    assert places(*range(9)) == 90
