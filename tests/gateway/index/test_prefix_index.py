"""What PrefixIndex promises beyond the contract: bounds, order of eviction, tidying up, its own figures."""

from __future__ import annotations

import random

import pytest

from gateway.index.holding import UNKNOWN
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId

A, B = WorkerId("a"), WorkerId("b")


def chain(start: int, length: int) -> list[BlockKey]:
    return [BlockKey(start * 1_000_003 + i) for i in range(length)]


def index_of(max_blocks: int, *workers: WorkerId) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks)
    for worker in workers or (A,):
        index.add_worker(worker)
    return index


def depth(index: PrefixIndex, keys: list[BlockKey], worker: WorkerId = A) -> int:
    """As `match` says, without counting as a use."""
    return index.held_depth(worker, keys)


def test_at_the_cap_the_least_recently_used_prefix_leaves_from_its_end() -> None:
    index = index_of(10)
    first, second = chain(1, 5), chain(2, 5)
    index.store(A, first)
    index.store(A, second)
    index.store(A, chain(3, 2))
    assert (depth(index, first), depth(index, second), depth(index, chain(3, 2))) == (3, 5, 2)
    assert index.stats().blocks == 10
    assert index.stats().evictions == 2
    index.check_integrity()


def test_a_match_is_a_use() -> None:
    index = index_of(10)
    first, second = chain(1, 5), chain(2, 5)
    index.store(A, first)
    index.store(A, second)
    index.match(first, 0.0)
    index.store(A, chain(3, 2))
    assert (depth(index, first), depth(index, second)) == (5, 3)


def test_a_match_of_a_part_keeps_that_part() -> None:
    index = index_of(10)
    first, second = chain(1, 5), chain(2, 5)
    index.store(A, first)
    index.store(A, second)
    index.match(first[:3], 0.0)  # first's end is the oldest now, then second, then first's beginning
    index.store(A, chain(3, 4))
    assert (depth(index, first), depth(index, second), depth(index, chain(3, 4))) == (3, 3, 4)
    index.check_integrity()


def test_what_siblings_share_outlives_them() -> None:
    index = index_of(9)
    shared = chain(1, 3)
    for branch in (2, 3, 4):
        index.store(A, [*shared, *chain(branch, 2)])
    index.store(A, chain(5, 4))
    assert depth(index, [*shared, *chain(2, 2)]) == 3
    assert depth(index, [*shared, *chain(3, 2)]) == 3
    assert depth(index, [*shared, *chain(4, 2)]) == 5
    assert depth(index, chain(5, 4)) == 4


def test_an_evicted_block_leaves_every_worker() -> None:
    index = index_of(4, A, B)
    index.store(A, chain(1, 4))
    index.store(B, chain(1, 4))
    index.store(B, chain(2, 1))
    assert depth(index, chain(1, 4), A) == depth(index, chain(1, 4), B) == 3
    index.check_integrity()


def test_a_run_longer_than_the_cap_keeps_its_beginning() -> None:
    index = index_of(4)
    index.store(A, chain(1, 9))
    assert depth(index, chain(1, 9)) == 4
    index.check_integrity()


def test_random_load_stays_within_the_cap() -> None:
    rng = random.Random(7)
    index = index_of(300, A, B)
    prompts = [chain(number, 20) for number in range(100)]
    for _ in range(2000):
        prompt = rng.choice(prompts)
        cut = rng.randrange(1, 21)
        worker = rng.choice((A, B))
        match rng.randrange(4):
            case 0 | 1:
                start = rng.randrange(cut)
                index.store(worker, prompt[start:cut], prompt[start - 1] if start else None)
            case 2:
                index.remove(worker, prompt[cut - 1 :])
            case _:
                index.match(prompt, 0.0)
        assert index.stats().blocks <= 300
    index.check_integrity()
    assert index.stats().evictions > 0


def test_figures() -> None:
    index = index_of(1000, A, B)
    index.store(A, chain(1, 5))
    index.store(A, chain(1, 5))
    index.store(B, chain(1, 3))
    index.place(B, chain(1, 5), 0.0)
    stats = index.stats()
    assert (stats.blocks, stats.held_pairs, stats.placed_pairs) == (5, 8, 2)
    assert stats.held == {A: 5, B: 3}
    assert sorted(index.held(B)) == chain(1, 3)
    assert list(index.held(WorkerId("nobody"))) == []
    assert index.copies(A, chain(1, 1)[0]) == 2


def test_a_large_worker_leaves_at_once_and_its_memory_in_slices() -> None:
    index = index_of(1_000_000, A, B)
    for number in range(100):
        index.store(A, chain(number, 100))
    index.store(B, chain(1, 100))
    index.remove_worker(A)
    assert index.match(chain(1, 100), 0.0) == {B: 100}
    assert index.stats().held == {B: 100}
    assert index.stats().retiring_pairs == 10_000 - 64
    index.check_integrity()
    while index.collect(3000):
        index.check_integrity()
    stats = index.stats()
    assert (stats.blocks, stats.held_pairs, stats.retiring_pairs) == (100, 100, 0)
    index.check_integrity()


def test_writes_tidy_up_by_and_by() -> None:
    index = index_of(1_000_000, A, B)
    for number in range(50):
        index.store(A, chain(number, 100))
    index.clear(A)
    begun = index.stats().retiring_pairs
    index.store(B, chain(100, 1))
    assert index.stats().retiring_pairs == begun - 4, "one key pays for few"
    for number in range(13):
        index.store(B, chain(101 + number, 100))
    assert index.stats().retiring_pairs == 0
    index.check_integrity()


def test_a_bit_is_used_again_only_when_nothing_is_left_of_its_last_owner() -> None:
    index = index_of(1_000_000, A)
    index.store(A, chain(1, 5000))
    index.remove_worker(A)
    index.add_worker(B)
    index.store(B, chain(2, 3))
    assert index.match(chain(1, 10), 0.0) == {}
    while index.collect():
        pass
    index.add_worker(A)
    assert index.match(chain(1, 10), 0.0) == {}
    index.store(A, chain(1, 10))
    assert index.match(chain(1, 10), 0.0) == {A: 10}
    index.check_integrity()


def test_placements_are_bounded() -> None:
    index = PrefixIndex(max_placed_keys=100)
    index.add_worker(A)
    for number in range(50):
        index.place(A, chain(number, 10), 0.0)
    assert index.stats().placed_pairs == 100
    assert index.match(chain(49, 10), 0.0) == {A: 10}
    assert index.match(chain(1, 10), 0.0) == {}
    index.check_integrity()


def test_integrity_notices_a_wrong_node() -> None:
    index = index_of(100)
    index.store(A, chain(1, 3))
    key = chain(1, 3)[1]
    index._tree.nodes[key] = index._tree.nodes[key] ^ 1
    with pytest.raises(AssertionError, match="1 follow it, and 0 are counted"):
        index.check_integrity()


def test_a_prompt_larger_than_the_engines_cache_is_guessed_up_to_it() -> None:
    index = PrefixIndex()
    index.add_worker(A, capacity=8)
    index.place(A, chain(1, 5), 0.0)
    index.place(A, chain(2, 100), 0.0)
    assert index.match(chain(2, 100), 0.0) == {A: 8}
    assert index.match(chain(1, 5), 0.0) == {}
    index.retract(A, chain(2, 100), 0.0, 0.1)
    assert index.count(A) == 0
    index.check_integrity()


def test_what_is_given_up_for_want_of_memory_is_no_longer_guessed() -> None:
    index = PrefixIndex(max_blocks=12)
    index.add_worker(A, capacity=100)
    index.add_worker(B, capacity=100)
    for number in range(5):
        for worker in (A, B):
            index.place(worker, chain(number, 4), 0.0)
            index.check_integrity()
    assert index.stats().blocks == 12
    assert index.match(chain(4, 4), 0.0) == {A: 4, B: 4}
    assert index.match(chain(1, 4), 0.0) == {}
    index.place(A, chain(1, 4), 0.0)  # not believed to be there still
    assert index.match(chain(1, 4), 0.0) == {A: 4}
    index.check_integrity()


def test_a_promise_reaches_on_where_another_worker_is_known_to_hold_less() -> None:
    index = index_of(100)
    index.add_worker(B)
    index.store(A, chain(1, 6))
    index.store(B, chain(1, 3))
    index.place(B, chain(1, 8), 0.0)
    assert index.match(chain(1, 10), 1.0) == {A: 6, B: 8}
    assert index.match(chain(1, 5), 1.0) == {A: 5, B: 5}
    assert index.match(chain(1, 10), 6.0) == {A: 6, B: 3}


class Counted(dict[int, int]):
    """Counts what is looked up."""

    def __init__(self, items: dict[int, int], asked: list[int]) -> None:
        super().__init__(items)
        self._asked = asked

    def get(self, key: int, default: int | None = None) -> int | None:  # type: ignore[override]
        self._asked.append(key)
        return super().get(key, default)


def asked_of(index: PrefixIndex, keys: list[BlockKey]) -> tuple[dict[WorkerId, int], int]:
    """The match, and of how many keys the nodes were asked."""
    asked: list[int] = []
    parts = index._tree.nodes.parts
    parts[:] = [Counted(part, asked) for part in parts]
    found = index.match(keys, 0.0)
    parts[:] = [dict(part) for part in parts]
    return found, len(asked) - 1  # that it was used is noted at its end


def test_a_match_asks_about_few_keys_where_there_is_no_hole() -> None:
    index = index_of(10_000, A, B)
    prompt = chain(1, 500)
    index.store(A, prompt[:480])
    index.store(B, prompt[:100])
    found, asked = asked_of(index, prompt)
    assert found == {A: 480, B: 100}
    assert asked < 80  # the first, every 16th, and those around the two ends


def test_a_hole_ends_a_match_however_few_keys_are_asked_about() -> None:
    index = index_of(10_000, A, B)
    prompt = chain(1, 500)
    index.store(A, prompt)
    index.store(B, prompt[:300])
    index.remove(A, [prompt[250]])
    assert asked_of(index, prompt)[0] == {A: 250, B: 300}
    index.store(A, [prompt[250]], prompt[249])
    found, asked = asked_of(index, prompt)
    assert found == {A: 500, B: 300}
    assert asked < 80, "the hole is filled"


def test_a_hole_of_a_worker_that_left_is_no_fault() -> None:
    """Two wait for their memory to be given back, one behind the other."""
    index = index_of(10_000, A, B)
    index.store(B, chain(1, 3000))
    index.store(A, chain(2, 3000))
    index.remove(A, [chain(2, 3000)[7]])
    index.remove_worker(B)
    index.remove_worker(A)
    assert index.stats().retiring_pairs > 2999
    index.check_integrity()
    while index.collect(1000):
        index.check_integrity()
    assert index._tree.holed == 0


def test_what_comes_before_a_block_may_be_unknown() -> None:
    index = index_of(10_000)
    prompt = chain(1, 100)
    index.store(A, prompt[:40])
    index.store(A, prompt[50:], UNKNOWN)
    assert index.match(prompt, 0.0) == {A: 40}
    index.store(A, prompt[40:50], prompt[39])
    assert index.match(prompt, 0.0) == {A: 100}
    index.remove(A, [prompt[45]])
    assert index.match(prompt, 0.0) == {A: 45}
