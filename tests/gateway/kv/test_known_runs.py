"""Keys that are looked up are those that would have been hashed."""

from __future__ import annotations

from array import array
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.kv.known_runs import RUN, KnownRuns
from gateway.types import CacheScope

ROOT, OTHER_ROOT = root_key(CacheScope("m")), root_key(CacheScope("n"))


def tokens(count: int, seed: int) -> array[int]:
    random = Random(seed)
    return array("I", [random.randrange(1 << 32) for _ in range(count)])


@given(
    prompts=st.lists(
        st.tuples(
            st.integers(0, 3),  # what it begins with
            st.integers(0, 3 * RUN * 4),  # and how much of that
            st.integers(0, 2 * RUN * 4),  # new tokens
            st.none() | st.integers(0, 5 * RUN),
            st.booleans(),
        ),
        max_size=12,
    ),
    most=st.integers(1, 8),
)
def test_they_are_the_same(prompts: list[tuple[int, int, int, int | None, bool]], most: int) -> None:
    runs = KnownRuns(most * RUN * 4 * 4)
    for number, (begins, of_it, new, max_blocks, other) in enumerate(prompts):
        packed = pack_tokens(tokens(3 * RUN * 4, begins)[:of_it] + tokens(new, 100 + number))
        root = OTHER_ROOT if other else ROOT
        found = runs.keys(root, packed, block_size=4, max_blocks=max_blocks)
        assert found == block_keys(root, packed, block_size=4, max_blocks=max_blocks)
        assert len(runs._runs) <= most


def test_a_run_that_begins_as_another_is_not_that_one() -> None:
    runs, prompt = KnownRuns(), tokens(2 * RUN * 16, 1)
    runs.keys(ROOT, pack_tokens(prompt))
    prompt[RUN * 16 - 1] ^= 1
    assert runs.keys(ROOT, pack_tokens(prompt)) == block_keys(ROOT, pack_tokens(prompt))


def test_what_the_caller_does_with_its_keys_changes_no_others() -> None:
    runs, packed = KnownRuns(), pack_tokens(tokens(2 * RUN * 16, 1))
    right = block_keys(ROOT, packed)
    for _ in range(3):
        found = runs.keys(ROOT, packed)
        assert found == right
        found.clear()


def test_the_last_used_are_kept() -> None:
    runs = KnownRuns(2 * RUN * 16 * 4)
    first, second, third = (pack_tokens(tokens(RUN * 16, seed)) for seed in (1, 2, 3))
    for packed in (first, second, first, third):
        runs.keys(ROOT, packed)
    assert [name[1] for name in runs._runs] == [first[:64], third[:64]]


def test_larger_blocks_take_no_more_memory() -> None:
    """A run of 64 blocks of 256 tokens is 64 KiB."""
    runs = KnownRuns(200_000)
    for seed in range(8):
        runs.keys(ROOT, pack_tokens(tokens(RUN * 256, seed)), block_size=256)
    assert sum(len(run) for run, _ in runs._runs.values()) == 3 * 65_536


def test_of_runs_that_begin_alike_the_last_one_is_kept_and_counted_once() -> None:
    runs, prompt = KnownRuns(2 * RUN * 16 * 4), tokens(RUN * 16, 1)
    other = pack_tokens(tokens(RUN * 16, 2))
    runs.keys(ROOT, other)
    for last in range(5):
        prompt[-1] = last
        runs.keys(ROOT, pack_tokens(prompt))
    assert [run for run, _ in runs._runs.values()] == [other, pack_tokens(prompt)]
