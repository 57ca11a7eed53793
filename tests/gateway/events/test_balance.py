"""Writer's duties over replicas: from any beginning they come to rest, evenly."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events.balance import PATIENCE_S, Balance
from gateway.types import WorkerId

A, B, C, D = (WorkerId(name) for name in "abcd")


def play(replicas: list[Balance], workers: list[WorkerId], random: Random, rounds: int = 200) -> int:
    """Replicas and writers speak in random order, as through Redis; how many hand-overs it took."""
    moves = 0
    asked: dict[WorkerId, tuple[int, Balance]] = {}
    for turn in range(rounds * len(workers)):
        worker = random.choice(workers)
        writer = next(one for one in replicas if worker in one.writing)
        mirror = random.choice([one for one in replicas if one is not writer])
        figure = mirror.asks(worker)
        if figure is not None and (worker not in asked or figure < asked[worker][0]):
            asked[worker] = figure, mirror
        elif figure is None and worker in asked and asked[worker][1] is mirror:
            del asked[worker]
        mirror.heard(worker, writer.told(), float(turn))
        if random.random() < 0.3 and worker in asked and writer.yields(asked[worker][0]):
            writer.dropped(worker)
            asked.pop(worker)[1].took(worker)
            moves += 1
    return moves


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(2, 5), st.integers(0, 99))
def test_from_any_beginning_the_duties_become_even_and_rest(owners: list[int], count: int, seed: int) -> None:
    random = Random(seed)
    replicas = [Balance(random.random) for _ in range(count)]
    workers = [WorkerId(str(number)) for number in range(len(owners))]
    for worker, owner in zip(workers, owners, strict=True):
        replicas[owner % count].took(worker)
    loads = [len(one.writing) for one in replicas]
    share = len(workers) / count
    moves = play(replicas, workers, random)
    after = sorted(len(one.writing) for one in replicas)
    assert sum(after) == len(workers)
    assert after[-1] - after[0] <= 1
    # none goes to and fro: each hand-over takes one from somebody above the average
    assert moves <= sum(max(0.0, load - share) for load in loads) + count
    assert play(replicas, workers, random) == 0, "it rests"


def test_the_difference_must_be_two() -> None:
    one = Balance(lambda: 0.0, writing={A})
    two = Balance(lambda: 0.0, writing={B, C})
    one.heard(B, two.told(), 0.0)
    assert one.asks(B) is None
    two.took(D)
    one.heard(B, two.told(), 1.0)
    assert one.asks(B) == 1
    assert two.yields(1)
    two.dropped(D)
    assert not two.yields(1), "it changed meanwhile"


def test_one_at_a_time_and_another_after_a_while() -> None:
    picks = iter((0.0, 0.99))
    late = Balance(lambda: next(picks))
    for worker in (A, B, C):
        late.heard(worker, 3, 0.0)
    assert [late.asks(worker) for worker in (A, B, C)] == [0, None, None]
    late.heard(B, 3, PATIENCE_S + 1)
    assert [late.asks(worker) for worker in (A, B, C)] == [None, None, 0]


def test_who_is_not_to_be_had_is_not_asked_for() -> None:
    late = Balance(lambda: 0.0)
    late.heard(A, 5, 0.0)
    late.heard(A, 0, 1.0)
    assert late.asks(A) is None


def test_an_agent_gets_what_it_follows_and_keeps_it() -> None:
    gateway, agent, other = Balance(lambda: 0.0), Balance(lambda: 0.0, beside=True), Balance(lambda: 0.0)
    gateway.took(A)
    agent.heard(A, gateway.told(), 0.0)
    figure = agent.asks(A)
    assert figure is not None
    assert gateway.yields(figure)
    gateway.dropped(A)
    agent.took(A)
    agent.took(B)
    other.heard(A, agent.told(), 1.0)
    assert other.asks(A) is None
    assert not agent.yields(0)
    assert not agent.yields(-1), "another agent neither"
