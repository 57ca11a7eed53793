"""Leases never leak a count; peers' loads are state; rates are learned."""

import pytest

from gateway.fleet.load import Lease, LoadBoard, LoadVector, WorkerLoad
from gateway.fleet.rates import PrefillRates, attended_pairs
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("http://a:1"), WorkerId("http://b:1")


def figures(load: WorkerLoad) -> tuple[int, int, int]:
    return load.requests, load.waiting_tokens, load.decoding_tokens


def test_a_lease_counts_once_whatever_happens() -> None:
    load, freed = WorkerLoad(A), []
    lease = Lease.take(
        load, prompt_tokens=100, matched_tokens=64, on_release=lambda: freed.append(figures(load))
    )
    assert figures(load) == (1, 36, 0)
    lease.first_byte()
    lease.first_byte()
    assert figures(load) == (1, 0, 100)
    lease.release()
    lease.release()
    lease.first_byte()
    assert figures(load) == (0, 0, 0)
    assert freed == [(0, 0, 0)]  # told once, after the place is free


def test_released_before_its_first_byte() -> None:
    load = WorkerLoad(A)
    lease = Lease.take(load, prompt_tokens=10, matched_tokens=64)
    assert figures(load) == (1, 0, 0)
    lease.release()
    assert (figures(load), lease.released) == ((0, 0, 0), True)


def test_a_peers_vector_replaces_what_it_said_before() -> None:
    board = LoadBoard()
    a, b = board.add(A), board.add(B)
    board.set_peer_loads("r1", {A: LoadVector(2, 200, 20), B: LoadVector(1, 10, 0)})
    board.set_peer_loads("r2", {A: LoadVector(3, 0, 900)})
    assert (a.peer_requests, a.peer_waiting_tokens, a.peer_decoding_tokens) == (5, 200, 920)
    board.set_peer_loads("r1", {A: LoadVector(1, 50, 0)})
    assert (a.peer_requests, a.peer_waiting_tokens, b.peer_requests) == (4, 50, 0)
    board.drop_peer("r2")
    board.drop_peer("r2")
    assert (a.all_requests, a.all_waiting_tokens, a.all_decoding_tokens) == (1, 50, 0)


def test_a_worker_that_comes_later_finds_what_peers_have_there() -> None:
    board = LoadBoard()
    board.set_peer_loads("r1", {A: LoadVector(2, 0, 0)})
    assert board.add(A).all_requests == 2


def test_own_vector_is_what_this_replica_has_in_flight() -> None:
    board = LoadBoard()
    board.add(B)
    Lease.take(board.add(A), prompt_tokens=32, matched_tokens=16)
    board.set_peer_loads("r1", {B: LoadVector(2, 0, 0)})
    assert board.own_vector() == {A: LoadVector(1, 16, 0, 32)}


def test_removed_and_added_again_with_a_lease_still_out() -> None:
    board = LoadBoard()
    lease = Lease.take(board.add(A), prompt_tokens=32, matched_tokens=0)
    board.remove(A)
    assert board.get(A) is None
    assert figures(board.add(A)) == (1, 32, 0)
    lease.release()
    assert figures(board.add(A)) == (0, 0, 0)


def test_the_bound_counts_peers_too() -> None:
    load = WorkerLoad(A, max_requests=3, requests=1, peer_requests=1)
    assert not load.full
    load.peer_requests = 2
    assert load.full


def test_occupancy() -> None:
    assert WorkerLoad(A, cached_blocks=30).occupancy == 0.0
    assert WorkerLoad(A, cached_blocks=30, capacity_blocks=120).occupancy == 0.25
    assert WorkerLoad(A, cached_blocks=130, capacity_blocks=120).occupancy == 1.0


def test_rates_are_relative_to_the_fleets_median() -> None:
    rates = PrefillRates()
    for worker, seconds in ((WorkerId("x"), 0.5), (WorkerId("y"), 1.0), (WorkerId("z"), 1.1)):
        for _ in range(8):
            rates.observe(worker, 1000, seconds)
    assert rates.tokens_per_second(WorkerId("x")) == pytest.approx(2000.0)
    # median 1000: y is it, z with 909 is within the dead band, x prefills twice as fast
    assert rates.relative() == {"x": pytest.approx(2.0), "y": 1.0, "z": 1.0}
    rates.forget(WorkerId("x"))
    assert rates.tokens_per_second(WorkerId("x")) is None


def test_long_contexts_do_not_make_a_worker_look_slow() -> None:
    rates = PrefillRates()
    for turn in range(20):
        for worker, speed in ((A, 1.0), (B, 1.0), (WorkerId("slow"), 0.5)):
            # A is asked long prompts, B short ones, the third both; 30 µs a token and 1 ns a pair
            prompt = 100_000 if worker == A or (worker != B and turn % 2) else 2_000
            pairs = attended_pairs(prompt, 1_000)
            seconds = (30e-6 * (prompt - 1_000) + 1e-9 * pairs) / speed
            rates.observe(worker, prompt - 1_000, seconds, pairs)
    # by tokens a second B would look more than twice as fast as A
    assert (rates.tokens_per_second(B) or 0) > 2 * (rates.tokens_per_second(A) or 0)
    assert rates.relative() == {A: 1.0, B: 1.0, "slow": pytest.approx(0.5, abs=0.05)}


def test_pairs_of_a_prompt_behind_a_cached_prefix() -> None:
    # 3 tokens behind 2: they see 2, 3 and 4 before them, counted from the middle of each: 2.5 + 3.5 + 4.5
    assert attended_pairs(5, 2) == 10.5


def test_rates_wait_for_proof() -> None:
    rates = PrefillRates()
    for _ in range(7):
        rates.observe(A, 1000, 1.0)
    for _ in range(20):
        rates.observe(B, 100, 1.0)  # too short to tell
        rates.observe(B, 1000, 0.0)
    assert rates.tokens_per_second(A) is None
    assert rates.relative() == {}
    rates.observe(A, 1000, 1.0)
    assert rates.relative() == {A: 1.0}


def test_rates_follow_a_worker_that_changes() -> None:
    rates = PrefillRates()
    for _ in range(8):
        rates.observe(A, 1000, 1.0)
    for _ in range(100):
        rates.observe(A, 1000, 0.5)
    assert rates.tokens_per_second(A) == pytest.approx(2000.0, rel=0.02)


def test_what_prompts_in_flight_have_in_common_counts_once() -> None:
    """Keys stand for 16 tokens each; looked at every 256, which is every 16th key."""
    board = LoadBoard()
    load = board.add(A)
    common = [BlockKey(i) for i in range(40)]  # 640 tokens, of which 512 are seen to be in common
    one, two = (common + [BlockKey(1000 * n + i) for i in range(30)] for n in (1, 2))
    first = Lease.take(load, prompt_tokens=1130, matched_tokens=0, keys=one)
    assert load.context_tokens == 1130
    assert load.common_context(two, 16) == 512
    second = Lease.take(load, prompt_tokens=1130, matched_tokens=640, keys=two)
    assert load.context_tokens == 1130 + 1130 - 512
    first.release()
    # what the second one needs is still there
    assert load.context_tokens == 1130
    second.release()
    second.release()
    assert (load.context_tokens, load.marks) == (0, {})


def test_blocks_larger_than_the_marks_distance_are_their_own_marks() -> None:
    load = LoadBoard().add(A)
    lease = Lease.take(
        load, prompt_tokens=1025, matched_tokens=0, keys=[BlockKey(1), BlockKey(2)], block_size=512
    )
    assert load.common_context([BlockKey(1), BlockKey(3)], 512) == 512
    lease.release()
    assert load.marks == {}
