"""Prompts in slices: when, where they are cut, how long they yield. Figures by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gateway.fleet.load import Lease, LoadBoard, LoadVector, WorkerLoad
from gateway.fleet.rates import MIN_SAMPLES, PrefillRates
from gateway.routing.policies.estimated_ttft import EstimatedTTFT
from gateway.routing.policy import RequestShape
from gateway.routing.slicing import NO_SLICING, Plan, Slicing, owes, plan
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("a"), WorkerId("b")
FIVE = Slicing(after_s=5.0, tokens=16_000)


def load(worker: WorkerId = A, **figures: int) -> WorkerLoad:
    return WorkerLoad(worker, capacity_tokens=400_000, **figures)


def planned(slicing: Slicing = FIVE, **other: Any) -> Plan | None:
    own = load()
    asked: dict[str, Any] = {
        "prompt_tokens": 100_000, "matched_tokens": 20_000, "seconds": 8.0, "block": 256, "load": own,
        "loads": [own],
    }  # fmt: skip
    return plan(slicing, **asked | other)


def test_a_prompt_that_takes_longer_than_that_by_itself() -> None:
    assert planned() == Plan(100_000, 20_000, 8.0, 16_000, 256)
    assert planned(NO_SLICING) is None
    assert planned(seconds=5.0) is None
    assert planned(seconds=None) is None  # nobody has measured the worker yet
    # what is left of it is hardly more than a slice
    assert planned(matched_tokens=80_000) is None
    assert planned(matched_tokens=79_999) is not None


def test_not_where_the_worker_has_no_room_to_keep_what_slices_leave() -> None:
    full, silent = load(context_tokens=300_001), WorkerLoad(A)
    assert planned(load=full, loads=[full]) is None
    assert planned(load=load(context_tokens=300_000)) is not None
    assert planned(load=silent) is None
    # more than three tenths of its cache
    assert planned(prompt_tokens=120_000) is not None
    assert planned(prompt_tokens=120_001) is None


def test_not_where_everybody_waits() -> None:
    waiting = [load(waiting_tokens=1) for _ in range(2)]
    assert planned(loads=[*waiting, load(), load()]) is not None
    assert planned(loads=[*waiting, load(), load(peer_waiting_tokens=1)]) is None
    # who waits for a prompt that yields does not wait long
    assert planned(loads=[*waiting, load(), load(waiting_tokens=1, peer_yielding_tokens=1)]) is not None


def test_cuts_end_with_a_block_of_the_engine() -> None:
    one = Plan(prompt_tokens=100_000, cached_tokens=20_224, seconds=8.0, tokens=16_000, block=256)
    # 36,224 is 141.5 blocks; the last 16,288 are less than a slice and a quarter
    assert one.cuts == [36_096, 52_096 // 256 * 256, 67_840, 83_712]
    assert one.yields_tokens == 63_776


def test_it_yields_a_quarter_of_its_own_time_and_no_more() -> None:
    one = Plan(prompt_tokens=100_000, cached_tokens=20_000, seconds=8.0, tokens=16_000, block=16)
    assert one.hold_s(0.0, 20_000) == pytest.approx(2.0)
    assert one.hold_s(1.5, 20_000) == pytest.approx(0.5)
    # half of it is there, in five seconds: one of them was others'
    assert one.hold_s(5.0, 60_000) == pytest.approx(1.0)
    assert one.hold_s(6.5, 60_000) == pytest.approx(-0.5)


def test_what_yields_is_no_wait_and_is_given_back_whatever_happens() -> None:
    board = LoadBoard()
    own = board.add(A)

    def taken() -> Lease:
        return Lease.take(own, prompt_tokens=90, matched_tokens=10, yielding_tokens=60)

    lease = taken()
    assert (own.waiting_tokens, own.yielding_tokens, own.context_tokens) == (20, 60, 90)
    assert board.own_vector() == {A: LoadVector(1, 20, 0, 90, 60)}
    lease.first_byte()
    assert (own.waiting_tokens, own.yielding_tokens, own.decoding_tokens) == (0, 0, 90)
    lease.release()
    other = taken()
    other.release()
    other.release()
    assert (own.waiting_tokens, own.yielding_tokens, own.decoding_tokens, own.context_tokens) == (0, 0, 0, 0)
    board.set_peer_loads("r2", {A: LoadVector(1, 5, 0, 90, 60)})
    assert (own.peer_waiting_tokens, own.peer_yielding_tokens) == (5, 60)


def test_strangers_wait_for_what_yields_and_those_who_live_there_do_not() -> None:
    busy, idle = load(A, waiting_tokens=16_000, yielding_tokens=80_000), load(B)
    policy = EstimatedTTFT(affinity_weight=0, balance_weight=0, request_tokens=0)
    stranger = policy.score(RequestShape(1000), [busy, idle], [0, 0])
    assert stranger == [96_000 + 2000, 2000]
    resident = policy.score(RequestShape(50_000), [busy, idle], [49_984, 0])
    assert resident == [16_000 + 2 * 16, 100_000]


def test_seconds_are_by_tokens_and_what_they_attend_to() -> None:
    rates = PrefillRates()
    draw = Random(7)
    for _ in range(40):
        tokens, pairs = draw.randrange(1000, 9000), draw.randrange(10**6, 10**8)
        seconds = 2e-5 * tokens + 3e-9 * pairs
        rates.observe(A, tokens, seconds, pairs)
        rates.observe(B, tokens, 3 * seconds, pairs)
    quick, slow = rates.seconds(A, 100_000, 5e9), rates.seconds(B, 100_000, 5e9)
    assert quick == pytest.approx(2.0 + 15.0, rel=0.02)
    assert slow == pytest.approx(3 * 17.0, rel=0.02)
    # nobody has measured it: the fleet's own price, between the two
    assert 17.0 < (rates.seconds(WorkerId("c"), 100_000, 5e9) or 0.0) < 3 * 17.0
    young = PrefillRates()
    for _ in range(MIN_SAMPLES - 1):
        young.observe(A, 1000, 1.0)
    assert young.seconds(A, 1000, 0.0) is None


def test_what_a_prompt_in_slices_owes() -> None:
    keys = [BlockKey(key) for key in range(100)]
    other = [*keys[:40], *(BlockKey(-key) for key in range(40, 100))]
    # 32 blocks of 16 are there: who was promised 33 waits for one
    assert not owes(keys, 512, keys, blocks=32, held=0, unit=16)
    assert owes(keys, 512, keys, blocks=33, held=0, unit=16)
    # the worker held those anyway
    assert not owes(keys, 512, keys, blocks=33, held=33, unit=16)
    assert owes(keys, 512, other, blocks=40, held=33, unit=16)
    # of another prompt, as far as it goes beyond what both have
    assert not owes(keys, 512, other, blocks=41, held=33, unit=16)
    # one that goes on behind the end of it waits for all of it
    assert owes(keys[:64], 512, keys, blocks=80, held=0, unit=16)


def test_room_was_taken_where_more_than_a_block_is_gone() -> None:
    one = Plan(prompt_tokens=100_000, cached_tokens=0, seconds=8.0, tokens=16_000, block=16)
    assert not one.room_taken(done=16_000, cached=16_000)
    assert not one.room_taken(done=16_000, cached=15_984)
    assert one.room_taken(done=16_000, cached=15_968)
