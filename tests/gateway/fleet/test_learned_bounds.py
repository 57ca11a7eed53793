"""What a worker's refusals teach about how much it takes at once."""

from __future__ import annotations

from gateway.fleet.bounds import FORGET_S, LearnedBounds
from gateway.fleet.load import Lease, LoadBoard, LoadVector, WorkerLoad
from gateway.types import WorkerId

W = WorkerId("w")


def busy(requests: int) -> WorkerLoad:
    load = WorkerLoad(W)
    for _ in range(requests):
        Lease.take(load, prompt_tokens=1, matched_tokens=0)
    return load


def test_nothing_is_learned_without_a_refusal() -> None:
    bounds, load = LearnedBounds(), busy(50)
    bounds.answered(load, 0.0)
    assert (load.bound, load.full) == (None, False)


def test_a_refusal_tells_what_it_takes() -> None:
    """Nine were in flight, the ninth was refused: eight it takes."""
    bounds, load = LearnedBounds(), busy(9)
    bounds.refused(load, 0.0)
    assert (load.bound, load.full) == (8, True)
    load.requests = 7
    assert not load.full


def test_a_burst_of_refusals_does_not_raise_it_and_one_stays() -> None:
    bounds, load = LearnedBounds(), busy(9)
    bounds.refused(load, 0.0)
    load.requests = 20
    bounds.refused(load, 0.1)
    assert load.bound == 8
    load.requests = 1
    bounds.refused(load, 0.2)
    assert load.bound == 1


def test_good_answers_at_the_bound_raise_it_by_one() -> None:
    bounds, load = LearnedBounds(), busy(4)
    bounds.refused(load, 0.0)
    load.requests = 2
    for _ in range(10):
        bounds.answered(load, 1.0)  # below the bound: they prove nothing
    assert load.bound == 3
    load.requests = 3
    for _ in range(3):
        bounds.answered(load, 1.0)
    assert load.bound == 4


def test_it_is_forgotten_when_nothing_confirms_it() -> None:
    bounds, load = LearnedBounds(), busy(4)
    bounds.refused(load, 0.0)
    bounds.answered(load, FORGET_S - 0.1)
    assert load.bound == 3
    bounds.answered(load, FORGET_S)
    assert load.bound is None


def test_the_operators_word_stands_above_it() -> None:
    load = busy(9)
    load.max_requests = 5
    bounds = LearnedBounds()
    bounds.refused(load, 0.0)
    assert load.bound == 5
    load.max_requests = 100
    assert load.bound == 8


def test_what_peers_have_there_counts() -> None:
    board = LoadBoard()
    load = board.add(W)
    board.set_peer_loads("other", {W: LoadVector(requests=6)})
    Lease.take(load, prompt_tokens=1, matched_tokens=0)
    LearnedBounds().refused(load, 0.0)
    assert load.bound == 6
