"""The guess of an engine's cache against a plain list of keys in order of their last use."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId

A = WorkerId("a")

Path = tuple[int, ...]
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)


def keys_of(path: Path) -> list[int]:
    """A key for each block, which says all that comes before it."""
    key, keys = 0, []
    for step in path:
        key = 4 * key + step + 1
        keys.append(key)
    return keys


class PlainLru:
    """First in `order` is who goes first: of a prompt the last block."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: dict[int, int] = {}

    def place(self, keys: Sequence[int]) -> list[int]:
        for key in reversed(keys):
            self.order[key] = self.order.pop(key, 0) + 1
        gone = list(self.order)[: max(0, len(self.order) - self.capacity)]
        for key in gone:
            del self.order[key]
        return gone

    def retract(self, keys: Sequence[int]) -> list[int]:
        gone = [key for key in keys if self.order.get(key) == 1]
        for key in keys:
            if key in self.order:
                self.order[key] -= 1
        for key in gone:
            del self.order[key]
        return gone

    def drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.order.pop(key, None)


class Guess:
    """The index with one worker that sends no events."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.index = PrefixIndex()
        self.index.add_worker(A, capacity=capacity)

    def keys(self) -> set[int]:
        self.index.check_integrity()
        return set(self.index.held(A))

    def place(self, keys: Sequence[int]) -> None:
        self.index.place(A, [BlockKey(key) for key in keys], 0.0)

    def retract(self, keys: Sequence[int]) -> None:
        self.index.retract(A, [BlockKey(key) for key in keys], 0.0, 0.0)


def limited(path: Path, capacity: int) -> list[int]:
    return keys_of(path)[:capacity]


@given(capacity=st.integers(1, 30), prompts=st.lists(st.tuples(PATHS, st.booleans()), max_size=60))
def test_the_same_keys_are_left_after_every_prompt(capacity: int, prompts: list[tuple[Path, bool]]) -> None:
    guess, plain = Guess(capacity), PlainLru(capacity)
    for path, turned_away in prompts:
        keys = limited(path, capacity)
        guess.place(keys)
        plain.place(keys)
        assert guess.keys() == plain.order.keys()
        if turned_away:
            guess.retract(keys)
            plain.retract(keys)
            assert guess.keys() == plain.order.keys()


@given(
    capacity=st.integers(1, 30),
    prompts=st.lists(st.tuples(PATHS, st.none() | st.integers(0, 7)), max_size=60),
)
def test_what_is_refuted_goes_and_what_follows_it_goes_in_its_turn(
    capacity: int, prompts: list[tuple[Path, int | None]]
) -> None:
    guess, plain = Guess(capacity), PlainLru(capacity)
    for path, delivered in prompts:
        keys = limited(path, capacity)
        guess.place(keys)
        plain.place(keys)
        if delivered is not None:
            guess.index.refute(A, [BlockKey(key) for key in keys], delivered)
            plain.drop(keys[delivered:])
        assert len(guess.keys()) == len(plain.order)


@given(
    capacity=st.integers(1, 12),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(1, 9), max_size=9, unique=True), st.integers(0, 3)), max_size=60
    ),
)
def test_keys_that_are_no_chains_are_bounded_and_pushed_out_as_well(
    capacity: int, prompts: list[tuple[list[int], int]]
) -> None:
    """Two prompts may have a key in common and not what comes before it: a hash can be made to."""
    guess = Guess(capacity)
    for prompt, what in prompts:
        keys = prompt[:capacity]
        guess.place(keys)
        assert guess.index.count(A) <= capacity
        if what == 1:
            guess.retract(keys)
        elif what == 2:
            guess.index.refute(A, [BlockKey(key) for key in keys], 0)
    if not any(what == 2 for _, what in prompts):  # else two keys may be found to follow each other
        chain = [BlockKey(key) for key in range(100, 100 + capacity)]
        guess.place(chain)
        assert guess.index.match(chain, 0.0) == {A: capacity}
