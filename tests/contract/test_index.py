"""What every prefix index must do. A new implementation joins by one line in `IMPLEMENTATIONS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pytest

from gateway.index.base import IndexReader, IndexWriter
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId


class Index(IndexReader, IndexWriter, Protocol):
    pass


IMPLEMENTATIONS: dict[str, Callable[[], Index]] = {
    "memory": PrefixIndex,
}

A, B, C = WorkerId("http://a"), WorkerId("http://b"), WorkerId("http://c")


def chain(start: int, length: int) -> list[BlockKey]:
    return [BlockKey(start * 1_000_003 + i) for i in range(length)]


PROMPT = chain(1, 6)


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def index(request: pytest.FixtureRequest) -> Index:
    made = IMPLEMENTATIONS[request.param]()
    for worker in (A, B):
        made.add_worker(worker)
    return made


def test_an_empty_index_matches_nothing(index: Index) -> None:
    assert index.match(PROMPT, 0.0) == {}
    assert index.match([], 0.0) == {}


def test_a_match_is_the_number_of_leading_blocks_by_worker(index: Index) -> None:
    index.store(A, PROMPT)
    index.store(B, PROMPT[:2])
    assert index.match(PROMPT, 0.0) == {A: 6, B: 2}
    assert index.match(PROMPT[:4], 0.0) == {A: 4, B: 2}
    assert index.match([*PROMPT[:3], *chain(2, 3)], 0.0) == {A: 3, B: 2}


def test_a_worker_without_a_match_is_left_out(index: Index) -> None:
    index.store(A, PROMPT)
    assert index.match(chain(9, 4), 0.0) == {}
    index.store(B, chain(9, 1))
    assert index.match(chain(9, 4), 0.0) == {B: 1}


def test_a_hole_ends_the_match(index: Index) -> None:
    index.store(A, PROMPT)
    index.remove(A, [PROMPT[2]])
    assert index.match(PROMPT, 0.0) == {A: 2}
    index.store(A, [PROMPT[2]], PROMPT[1])
    assert index.match(PROMPT, 0.0) == {A: 6}


def test_blocks_without_the_first_match_nothing(index: Index) -> None:
    index.store(A, PROMPT[1:], PROMPT[0])
    assert index.match(PROMPT, 0.0) == {}
    index.store(A, PROMPT[:1])
    assert index.match(PROMPT, 0.0) == {A: 6}


def test_copies_are_counted(index: Index) -> None:
    for _ in range(3):
        index.store(A, PROMPT)
    for left in (2, 1):
        index.remove(A, PROMPT)
        assert index.match(PROMPT, 0.0) == {A: 6}, f"{left} copies are left"
    index.remove(A, PROMPT)
    assert index.match(PROMPT, 0.0) == {}


def test_copies_are_counted_for_each_worker(index: Index) -> None:
    index.store(A, PROMPT)
    index.store(B, PROMPT)
    index.remove(A, PROMPT)
    assert index.match(PROMPT, 0.0) == {B: 6}


def test_removing_what_is_not_held_changes_nothing(index: Index) -> None:
    index.remove(A, PROMPT)
    index.store(A, PROMPT[:2])
    index.remove(B, PROMPT)
    index.remove(A, PROMPT[2:])
    assert index.match(PROMPT, 0.0) == {A: 2}
    index.store(A, PROMPT[2:], PROMPT[1])
    assert index.match(PROMPT, 0.0) == {A: 6}, "no debt is carried over"


def test_clear_voids_all_that_the_worker_held_copies_and_placements_too(index: Index) -> None:
    index.store(A, PROMPT)
    index.store(A, PROMPT)
    index.place(A, chain(2, 3), 0.0)
    index.store(B, PROMPT[:1])
    index.clear(A)
    assert index.match(PROMPT, 0.0) == {B: 1}
    assert index.match(chain(2, 3), 0.0) == {}
    index.store(A, PROMPT[:3])
    index.remove(A, PROMPT[:3])
    assert index.match(PROMPT, 0.0) == {B: 1}, "one copy in the new epoch, and it is gone"


def test_a_removed_worker_is_forgotten_and_events_in_flight_do_not_bring_it_back(index: Index) -> None:
    index.store(A, PROMPT)
    index.place(A, chain(2, 3), 0.0)
    index.remove_worker(A)
    index.store(A, PROMPT)
    index.place(A, PROMPT, 0.0)
    index.remove(A, PROMPT)
    index.refute(A, PROMPT, 0)
    index.clear(A)
    assert index.match(PROMPT, 0.0) == {}
    assert index.match(chain(2, 3), 0.0) == {}
    index.remove_worker(A)


def test_a_worker_that_comes_after_another_left_inherits_nothing(index: Index) -> None:
    index.store(A, PROMPT)
    index.place(A, chain(2, 3), 0.0)
    index.remove_worker(A)
    index.add_worker(C)
    assert index.match(PROMPT, 0.0) == {}
    assert index.match(chain(2, 3), 0.0) == {}
    index.add_worker(A)
    assert index.match(PROMPT, 0.0) == {}


def test_adding_a_known_worker_again_keeps_what_it_holds(index: Index) -> None:
    index.store(A, PROMPT)
    index.add_worker(A)
    assert index.match(PROMPT, 0.0) == {A: 6}


def test_many_workers(index: Index) -> None:
    workers = [WorkerId(f"w{i}") for i in range(200)]
    for number, worker in enumerate(workers):
        index.add_worker(worker)
        index.store(worker, PROMPT[: number % 7])
    expected = {worker: number % 7 for number, worker in enumerate(workers) if number % 7}
    assert index.match(PROMPT, 0.0) == expected


def test_siblings_of_a_burst_meet_before_the_first_event(index: Index) -> None:
    index.place(A, PROMPT, 10.0)
    assert index.match(PROMPT, 10.0) == {A: 6}
    assert index.match([*PROMPT[:3], *chain(2, 3)], 12.0) == {A: 3}


def test_a_placement_continues_what_is_held(index: Index) -> None:
    index.store(A, PROMPT[:2])
    index.place(A, PROMPT[:4], 0.0)
    assert index.match(PROMPT, 1.0) == {A: 4}
    assert index.held_depth(A, PROMPT) == 2


def test_a_placement_that_nothing_confirms_vanishes(index: Index) -> None:
    index.store(A, PROMPT[:2])
    index.place(A, PROMPT, 0.0)
    assert index.match(PROMPT, 4.9) == {A: 6}
    assert index.match(PROMPT, 5.0) == {A: 2}


def test_a_second_placement_prolongs_the_first(index: Index) -> None:
    index.place(A, PROMPT, 0.0)
    index.place(A, PROMPT[:3], 3.0)
    assert index.match(PROMPT, 5.0) == {A: 3}
    assert index.match(PROMPT, 8.0) == {}


def test_an_event_confirms_a_placement_and_its_removal_then_counts(index: Index) -> None:
    index.place(A, PROMPT, 0.0)
    index.store(A, PROMPT)
    assert index.match(PROMPT, 60.0) == {A: 6}
    index.place(A, PROMPT, 61.0)
    index.remove(A, PROMPT)
    assert index.match(PROMPT, 61.0) == {}, "a placement of what was held already promises nothing more"


def test_feedback_takes_back_what_lies_behind_the_delivered_point(index: Index) -> None:
    index.store(A, PROMPT)
    index.store(A, PROMPT)
    index.store(B, PROMPT)
    index.refute(A, PROMPT, 4)
    assert index.match(PROMPT, 0.0) == {A: 4, B: 6}
    index.remove(A, PROMPT[4:])
    assert index.match(PROMPT, 0.0) == {A: 4, B: 6}
    index.store(A, PROMPT[4:], PROMPT[3])
    assert index.match(PROMPT, 0.0) == {A: 6, B: 6}


def test_an_epoch_ends_when_all_is_void(index: Index) -> None:
    first = index.epoch(A)
    index.store(A, PROMPT)
    index.refute(A, PROMPT, 0)
    assert index.epoch(A) == first > 0
    index.clear(A)
    second = index.epoch(A)
    index.remove_worker(A)
    assert index.epoch(A) == 0
    index.add_worker(A)
    assert len({first, second, index.epoch(A), index.epoch(B), 0}) == 5


def test_feedback_takes_back_placements(index: Index) -> None:
    index.place(A, PROMPT, 0.0)
    index.refute(A, PROMPT, 1)
    assert index.match(PROMPT, 0.0) == {A: 1}


def test_held_depth_is_one_workers_own_word(index: Index) -> None:
    index.store(A, PROMPT[:4])
    index.place(B, PROMPT, 0.0)
    assert index.held_depth(A, PROMPT) == 4
    assert index.held_depth(B, PROMPT) == 0
    assert index.held_depth(C, PROMPT) == 0


def test_one_key_is_held_by_a_workers_own_word(index: Index) -> None:
    index.store(A, PROMPT[:4])
    index.place(A, PROMPT, 0.0)
    index.store(B, PROMPT[4:5], PROMPT[3])  # whatever is missing before it
    assert [index.holds(A, PROMPT[number]) for number in (0, 3, 4)] == [True, True, False]
    assert [index.holds(worker, PROMPT[4]) for worker in (B, C)] == [True, False]


def test_larger_engine_blocks_count_in_whole_ones(index: Index) -> None:
    """Blocks of 64 tokens: four of ours each. Another prompt shares 5 of ours, so only its first four."""
    index.add_worker(A, stride=4)
    stored = chain(3, 8)
    index.store(A, stored)
    assert index.match(stored, 0.0) == {A: 8}
    assert index.match(stored[:7], 0.0) == {A: 4}
    assert index.match([*stored[:5], *chain(4, 3)], 0.0) == {A: 4}
    assert index.match(stored[:3], 0.0) == {}
    assert index.held_depth(A, stored[:7]) == 4


def test_a_retracted_placement_promises_nothing(index: Index) -> None:
    index.store(A, PROMPT[:2])
    index.place(A, PROMPT, 0.0)
    index.place(B, PROMPT, 0.0)
    index.retract(A, PROMPT, 0.0, 1.0)
    assert index.match(PROMPT, 1.0) == {A: 2, B: 6}, (
        "what the engine told of stays, and so do others' promises"
    )


def test_a_retraction_leaves_what_other_decisions_promised(index: Index) -> None:
    index.place(A, PROMPT, 0.0)
    index.place(A, PROMPT[:4], 1.0)
    index.place(A, PROMPT[:2], 1.0)
    index.retract(A, PROMPT, 0.0, 2.0)
    assert index.match(PROMPT, 2.0) == {A: 4}
    index.retract(A, PROMPT[:4], 1.0, 2.0)
    assert index.match(PROMPT, 2.0) == {A: 2}
    index.retract(A, PROMPT[:2], 1.0, 2.0)
    assert index.match(PROMPT, 2.0) == {}


def test_a_late_retraction_takes_nothing_back_from_later_decisions(index: Index) -> None:
    index.place(A, PROMPT, 0.0)
    index.place(A, PROMPT, 60.0)
    index.retract(A, PROMPT, 0.0, 60.0)
    index.retract(C, PROMPT, 0.0, 60.0)
    assert index.match(PROMPT, 60.0) == {A: 6}


def test_without_events_a_retraction_takes_back_what_nobody_else_brought(index: Index) -> None:
    index.add_worker(C, capacity=8)
    index.place(C, PROMPT[:3], 0.0)
    index.place(C, PROMPT, 100.0)
    index.retract(C, PROMPT, 100.0, 101.0)
    assert index.match(PROMPT, 101.0) == {C: 3}
    index.retract(C, PROMPT[:3], 0.0, 101.0)
    assert index.match(PROMPT, 101.0) == {}


def test_without_events_placements_stand_until_the_engine_would_have_evicted_them(index: Index) -> None:
    index.add_worker(C, capacity=8)
    first, second = chain(5, 5), chain(6, 5)
    index.place(C, first, 0.0)
    assert index.match(first, 1e6) == {C: 5}, "no expiry"
    index.place(C, second, 1.0)
    assert index.match(second, 2.0) == {C: 5}
    assert index.match(first, 2.0) == {C: 3}, "the end of the older prompt was evicted"
    index.place(C, first[:3], 3.0)
    index.place(C, chain(7, 3), 4.0)
    assert index.match(first, 5.0) == {C: 3}, "it was used again, so the other one lost"
    assert index.match(second, 5.0) == {C: 2}


def test_without_events_feedback_is_the_only_correction(index: Index) -> None:
    index.add_worker(C, capacity=100)
    index.place(C, PROMPT, 0.0)
    index.refute(C, PROMPT, 2)
    assert index.match(PROMPT, 0.0) == {C: 2}
    index.place(C, PROMPT, 1.0)
    assert index.match(PROMPT, 1.0) == {C: 6}
    index.clear(C)
    assert index.match(PROMPT, 1.0) == {}


def test_a_guess_does_not_outlive_the_first_word_of_the_engine(index: Index) -> None:
    index.add_worker(C, capacity=100)
    index.place(C, PROMPT, 0.0)
    index.add_worker(C)
    assert index.match(PROMPT, 0.0) == {}
    index.store(C, PROMPT[:2])
    index.place(C, PROMPT, 0.0)
    assert index.match(PROMPT, 0.0) == {C: 6}
    assert index.match(PROMPT, 5.0) == {C: 2}


def test_order_of_keys_within_a_removal_does_not_matter(index: Index) -> None:
    def left_after(order: Sequence[int]) -> dict[WorkerId, int]:
        index.clear(A)
        index.store(A, PROMPT)
        index.remove(A, [PROMPT[i] for i in order])
        return dict(index.match(PROMPT, 0.0))

    assert left_after([5, 4, 3]) == left_after([3, 4, 5]) == left_after([4, 3, 5]) == {A: 3}


def test_who_watches_a_block_hears_that_it_went_though_it_is_back(index: Index) -> None:
    index.store(A, PROMPT)
    first, second = index.watch(A, PROMPT[-1]), index.watch(A, PROMPT[-1])
    other = index.watch(A, PROMPT[0])
    assert first is not None
    assert second is not None
    assert other is not None
    index.remove(A, PROMPT[3:])
    index.store(A, PROMPT[3:], PROMPT[2])
    later = index.watch(A, PROMPT[-1])
    assert later is not None
    assert [watch.gone for watch in (first, second, other, later)] == [True, True, False, False]
    for watch in (first, second, other, later):
        index.unwatch(A, watch)
    index.remove(A, PROMPT)
    assert not later.gone, "nobody watches it any more"


def test_a_copy_less_is_no_block_less_to_who_watches_it(index: Index) -> None:
    index.store(A, PROMPT)
    index.store(A, PROMPT)
    watch = index.watch(A, PROMPT[-1])
    assert watch is not None
    index.remove(A, PROMPT)
    assert not watch.gone
    index.remove(A, PROMPT)
    assert watch.gone


def test_what_is_refuted_did_not_go_by_the_worker_s_word(index: Index) -> None:
    index.store(A, PROMPT)
    watch = index.watch(A, PROMPT[-1])
    assert watch is not None
    index.refute(A, PROMPT, 2)
    assert not watch.gone


def test_what_went_and_came_between_two_words_went(index: Index) -> None:
    index.store(A, PROMPT)
    watch = index.watch(A, PROMPT[-1])
    assert watch is not None
    index.replaced(A, PROMPT[-1])
    index.replaced(B, PROMPT[-1])
    assert watch.gone


def test_nobody_watches_who_says_nothing(index: Index) -> None:
    index.add_worker(C, capacity=10)
    assert index.watch(C, PROMPT[0]) is None
    assert index.watch(WorkerId("http://nobody"), PROMPT[0]) is None
