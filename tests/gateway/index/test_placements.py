"""Promises as trees of runs: what prompts have in common counts once, and ends when the last of them does."""

from __future__ import annotations

import pytest

from gateway.index.placements import Placements
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId

A = WorkerId("a")
BIT = 1 << 40
PROMPT = [BlockKey(1_000_003 + i) for i in range(12)]
OTHER = [*PROMPT[:6], *(BlockKey(5_000_003 + i) for i in range(4))]


def place(placements: Placements, keys: list[BlockKey], now: float) -> None:
    placements.place(BIT, keys[-1], [list[int](keys)], now)
    placements.check_integrity()


def test_what_prompts_have_in_common_is_promised_once_and_until_the_last_of_them_ends() -> None:
    placements = Placements(ttl=5.0)
    place(placements, PROMPT, 0.0)
    place(placements, OTHER, 1.0)
    place(placements, PROMPT[:3], 2.0)
    assert len(placements) == 16
    assert placements.reach(BIT, PROMPT, 0) == 12
    assert placements.reach(BIT, OTHER, 0) == 10
    placements.expire(5.0)
    assert (len(placements), placements.reach(BIT, PROMPT, 0), placements.reach(BIT, OTHER, 0)) == (10, 6, 10)
    placements.check_integrity()
    placements.expire(6.0)
    assert (len(placements), placements.reach(BIT, PROMPT, 0)) == (3, 3)
    placements.expire(7.0)
    assert (len(placements), placements.masks) == (0, {})
    placements.check_integrity()


def test_a_promise_that_begins_on_the_way_of_another_leads_farther() -> None:
    """As where replicas tell each other of what is new of a prompt only."""
    placements = Placements()
    place(placements, PROMPT[5:], 0.0)
    assert placements.reach(BIT, PROMPT, 5) == 12
    assert placements.reach(BIT, PROMPT, 3) == 3
    place(placements, PROMPT[2:8], 0.0)
    assert placements.reach(BIT, PROMPT, 2) == 12
    assert placements.reach(BIT, OTHER, 2) == 6
    assert placements.reach(BIT, tuple(PROMPT), 2) == 12


def test_a_promise_that_begins_where_another_ends_goes_on_from_it() -> None:
    placements = Placements()
    place(placements, PROMPT[:5], 0.0)
    place(placements, PROMPT[5:], 0.0)
    assert placements.reach(BIT, PROMPT, 0) == 12


def test_a_promise_comes_true_from_its_beginning() -> None:
    placements = Placements()
    place(placements, PROMPT, 0.0)
    place(placements, OTHER, 0.0)
    placements.came_true(BIT, PROMPT[:4])
    placements.check_integrity()
    assert len(placements) == 12
    assert placements.masks == {PROMPT[4]: BIT}
    placements.came_true(BIT, PROMPT[2:8])  # what is held already may be said again
    placements.check_integrity()
    assert placements.masks == {PROMPT[8]: BIT, OTHER[6]: BIT}
    assert placements.reach(BIT, PROMPT, 8) == 12
    placements.came_true(BIT, PROMPT[8:])
    placements.came_true(BIT, OTHER[6:])
    assert (len(placements), placements.masks) == (0, {})
    placements.expire(5.0)
    placements.check_integrity()


def test_what_is_dropped_from_the_middle_leaves_the_rest() -> None:
    placements = Placements()
    place(placements, PROMPT, 0.0)
    place(placements, OTHER, 0.0)
    placements.drop(BIT, [PROMPT[3], PROMPT[4], OTHER[9], BlockKey(7)])
    placements.check_integrity()
    assert len(placements) == 13
    assert placements.reach(BIT, PROMPT, 0) == 3
    assert placements.reach(BIT, PROMPT, 5) == 12
    assert placements.reach(BIT, OTHER, 5) == 9
    placements.expire(5.0)
    assert len(placements) == 0
    placements.check_integrity()


def test_a_refuted_promise_ends_where_it_was_refuted_for_all_that_share_it() -> None:
    placements = Placements()
    place(placements, PROMPT, 0.0)
    place(placements, OTHER, 0.0)
    placements.refute(BIT, PROMPT, 8)
    placements.check_integrity()
    assert (placements.reach(BIT, PROMPT, 0), placements.reach(BIT, OTHER, 0)) == (8, 10)
    placements.refute(BIT, OTHER, 4)
    placements.check_integrity()
    assert (placements.reach(BIT, PROMPT, 0), placements.reach(BIT, OTHER, 0)) == (4, 4)
    placements.refute(BIT, PROMPT[:6], 0)
    assert (len(placements), placements.masks) == (0, {})
    placements.expire(5.0)
    placements.check_integrity()


def test_a_burst_of_siblings_shares_its_beginning() -> None:
    index = PrefixIndex()
    index.add_worker(A)
    shared = [BlockKey(9_000_003 + i) for i in range(300)]
    tails = [[BlockKey((number + 20) * 1_000_003 + i) for i in range(10)] for number in range(1000)]
    for tail in tails:
        index.place(A, [*shared, *tail], 0.0)
    assert index.stats().placed_pairs == 300 + 1000 * 10
    assert all(index.match([*shared, *tail], 1.0) == {A: 310} for tail in tails)
    index.retract(A, [*shared, *tails[7]], 0.0, 1.0)
    assert index.match([*shared, *tails[7]], 1.0) == {A: 300}
    index.store(A, shared, None)
    assert index.match([*shared, *tails[8]], 1.0) == {A: 310}
    index.remove(A, shared[::-1])
    assert index.match([*shared, *tails[8]], 1.0) == {}, "what came true and went is promised no more"
    index.check_integrity()


def test_what_came_true_in_part_and_went_again_is_not_promised() -> None:
    index = PrefixIndex()
    index.add_worker(A)
    index.place(A, PROMPT, 0.0)
    index.store(A, PROMPT[:4])
    index.remove(A, [PROMPT[3]])
    assert index.match(PROMPT, 1.0) == {A: 3}
    index.store(A, [PROMPT[3]], PROMPT[2])
    assert index.match(PROMPT, 1.0) == {A: 12}
    index.check_integrity()


@pytest.mark.parametrize("filled", [False, True])
def test_what_came_true_in_the_middle_and_went_again_is_not_promised(filled: bool) -> None:
    """Of a block that came without the one before it, whether that comes too or not."""
    index = PrefixIndex()
    index.add_worker(A)
    index.place(A, PROMPT, 0.0)
    index.store(A, [PROMPT[5]], PROMPT[4])
    assert index.match(PROMPT, 1.0) == {A: 12}
    if filled:
        index.store(A, PROMPT[:5])
        assert index.match(PROMPT, 1.0) == {A: 12}
    index.remove(A, [PROMPT[5]])
    assert index.match(PROMPT, 1.0) == {A: 5}
    index.store(A, [PROMPT[5]], PROMPT[4])
    assert index.match(PROMPT, 1.0) == {A: 12}
    index.check_integrity()


@pytest.mark.parametrize("first", [0, 1], ids=["the older", "the younger"])
def test_a_promise_made_round_a_hole_counts_once(first: int) -> None:
    """Of a block that came without the one before it, the rest is promised twice: before it came, together
    with what is before it, and after. Whichever promise is taken back, the other stands."""
    index = PrefixIndex()
    index.add_worker(A)
    index.place(A, PROMPT, 0.0)
    index.store(A, [PROMPT[5]], PROMPT[4])
    index.place(A, PROMPT, 1.0)
    index.check_integrity()
    for at, depth in ((first, 12), (1 - first, 0)):
        index.retract(A, PROMPT, float(at), 2.0)
        index.check_integrity()
        assert index.match(PROMPT, 2.0) == ({A: depth} if depth else {})


def test_of_many_the_oldest_go_early() -> None:
    placements = Placements(max_keys=20)
    place(placements, PROMPT, 0.0)
    place(placements, OTHER, 1.0)
    assert len(placements) == 16
    place(placements, [BlockKey(70_000_003 + i) for i in range(8)], 2.0)
    assert (len(placements), placements.reach(BIT, PROMPT, 0)) == (18, 6)


def test_integrity_notices_a_promise_that_never_ends() -> None:
    placements = Placements()
    place(placements, PROMPT, 0.0)
    placements._queue.clear()
    with pytest.raises(AssertionError, match="never expire"):
        placements.check_integrity()
