"""An index is inspected while it is written to: what is sound is never taken for unsound, and what is not is
found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from gateway.index.inspection import MANY, STEP
from gateway.index.prefix import PrefixIndex
from gateway.types import BlockKey, WorkerId

A, B, GUESSED = WorkerId("a"), WorkerId("b"), WorkerId("guessed")
ROOT = [BlockKey(number) for number in range(1, 5)]


def chat(number: int) -> list[BlockKey]:
    """Three blocks that follow the root."""
    return [BlockKey(1000 + 10 * number + place) for place in range(3)]


def filled(chats: int = 40) -> PrefixIndex:
    """Two workers that tell, one of which has a hole, and one that is guessed."""
    index = PrefixIndex()
    index.add_worker(A)
    index.add_worker(B)
    index.add_worker(GUESSED, capacity=100)
    for number in range(chats):
        index.store(A, [*ROOT, *chat(number)])
        index.store(B, chat(number), ROOT[-1])
        index.place(GUESSED, [*ROOT, *chat(number)], 0.0)
    index.store(A, chat(0))
    index.place(B, [*ROOT, *chat(chats)], 0.0)
    index.match([*ROOT, *chat(3)[:1]], 1.0)
    return index


def gone_through(steps: Iterator[None], between: Callable[[], None]) -> int:
    number = 0
    for _ in steps:
        between()
        number += 1
    return number


def test_every_step_may_be_followed_by_any_write() -> None:
    """Blocks that come, go, get a second holder, or lose the last; workers that are cleared and removed."""
    index, numbers = filled(), count(100)

    def write() -> None:
        number = next(numbers)
        index.store(A, [*ROOT, *chat(number)])
        index.store(B, chat(number)[1:], chat(number)[0])
        index.remove(A, chat(number - 5)[::-1])
        index.remove(B, [chat(number - 7)[1]])
        index.place(GUESSED, [*ROOT, *chat(number)], 1.0)
        index.place(A, [*ROOT, *chat(number + 1)], 1.0)
        index.match([*ROOT, *chat(number)], 1.0)
        if number % 20 == 0:
            index.clear(B)
        if number % 31 == 0:
            index.remove_worker(A)
            index.add_worker(A)
            index.add_worker(WorkerId(f"new {number}"))
            index.store(WorkerId(f"new {number}"), ROOT)
        index.collect(3)

    assert gone_through(index.inspect(), write) > 64, "four rounds of sixteen parts"
    index.check_integrity()


def test_a_system_prompt_is_counted_in_several_steps() -> None:
    """While chats begin and end behind it: those that were counted already, too."""
    index = PrefixIndex()
    index.add_worker(A)
    chats = 4 * MANY
    for number in range(chats):
        index.store(A, [*ROOT, *chat(number)])
    alone = gone_through(index.inspect(), lambda: None)
    numbers = count()

    def write() -> None:
        number = next(numbers)
        index.remove(A, chat(number % chats)[::-1])
        index.store(A, chat(chats + number), ROOT[-1])
        index.store(A, chat(number % 7), ROOT[-1])

    steps = gone_through(index.inspect(), write)
    assert alone > 3 * chats // STEP
    assert steps > 3 * chats // STEP
    index.check_integrity()


def test_two_at_once_and_one_that_is_given_up() -> None:
    index, numbers = filled(), count(100)
    first, second, third = index.inspect(), index.inspect(), index.inspect()
    for steps in (first, second, third):
        next(steps)
    third.close()  # type: ignore[attr-defined]

    def write() -> None:
        index.store(A, chat(next(numbers)), ROOT[-1])
        next(second, None)

    gone_through(first, write)
    gone_through(second, lambda: None)
    assert index._tree.watchers == []


def _node(index: PrefixIndex, key: BlockKey, change: int) -> None:
    index._tree.nodes[key] = index._tree.nodes[key] + change


def _bit(index: PrefixIndex, worker: WorkerId) -> int:
    return index._workers[worker].holding.bit


WRONG: dict[str, Callable[[PrefixIndex], object]] = {
    "a child more is counted": lambda i: _node(i, ROOT[-1], 1),
    "a child less is counted": lambda i: _node(i, ROOT[1], -1),
    "a holder more": lambda i: _node(i, chat(5)[1], _bit(i, B) * 4),
    "a holder less": lambda i: _node(i, chat(5)[1], -_bit(i, B)),
    "a node less": lambda i: i._tree.nodes.__delitem__(chat(5)[2]),
    "a node that nobody holds": lambda i: i._tree.nodes.__setitem__(BlockKey(99), 0),
    "a leaf that is not known as one": lambda i: i._tree.leaves.pop(chat(7)[2]),
    "a leaf that has children": lambda i: i._tree.leaves.__setitem__(ROOT[2], 1),
    "a leaf that is gone": lambda i: i._tree.leaves.__setitem__(BlockKey(99), 1),
    "a ghost that is held": lambda i: i._tree.ghosts.__setitem__(ROOT[2], None),
    "a ghost that is gone": lambda i: i._tree.ghosts.__setitem__(BlockKey(99), None),
    "a time of use of a leaf": lambda i: i._tree.used.__setitem__(chat(7)[2], 3),
    "a time of use of one that is gone": lambda i: i._tree.used.__setitem__(BlockKey(99), 3),
    "the size": lambda i: setattr(i._tree, "size", i._tree.size + 1),
    "held and not in its node": lambda i: i._workers[A].holding.parents.__setitem__(BlockKey(99), None),
    "in its node and not held": lambda i: i._workers[A].holding.parents.__delitem__(chat(9)[1]),
    "another parent": lambda i: i._workers[B].holding.parents.__setitem__(chat(9)[1], ROOT[0]),
    "a worker's size": lambda i: setattr(i._workers[A].holding, "size", 7),
    "a tip less": lambda i: i._workers[A].holding.tips.remove(chat(9)[2]),
    "a tip more": lambda i: i._workers[A].holding.tips.add(chat(9)[0]),
    "a tip that is not held": lambda i: i._workers[A].holding.tips.add(BlockKey(99)),
    "a fork less": lambda i: i._workers[A].holding.forks.pop(ROOT[-1]),
    "a fork more": lambda i: i._workers[A].holding.forks.__setitem__(chat(9)[0], 2),
    "a fork that is not held": lambda i: i._workers[A].holding.forks.__setitem__(BlockKey(99), 2),
    "a hole less": lambda i: i._workers[B].holding.holes.pop(ROOT[-1]),
    "a hole that is held": lambda i: i._workers[A].holding.holes.__setitem__(chat(9)[0], 1),
    "a hole that nothing follows": lambda i: i._workers[B].holding.holes.__setitem__(BlockKey(99), 1),
    "one copy that is counted": lambda i: i._workers[A].holding.copies.__setitem__(chat(9)[0], 1),
    "copies of one that is not held": lambda i: i._workers[A].holding.copies.__setitem__(BlockKey(99), 2),
    "a promise that no mask shows": lambda i: i._placements.masks.clear(),
    "promised keys": lambda i: setattr(i._placements, "_size", 99),
    "a promise that never ends": lambda i: i._placements._queue.clear(),
    "a guess that would never go": lambda i: i._workers[GUESSED].lru._queue.clear(),  # type: ignore[union-attr]
    "a bit that is matched for nobody": lambda i: setattr(i, "_active", i._active | 1 << 60),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("at_work", [False, True], ids=["at rest", "at work"])
def test_whatever_is_wrong_is_found(wrong: Callable[[PrefixIndex], object], at_work: bool) -> None:
    """Also where it goes wrong after the beginning, and where what is wrong is written to meanwhile."""
    index, numbers = filled(), count(100)
    index.check_integrity()

    def write() -> None:
        number = next(numbers)
        index.store(A, chat(number), ROOT[-1])
        index.store(B, chat(number), chat(9)[0])

    steps = index.inspect()
    if at_work:
        next(steps)
    wrong(index)
    with pytest.raises(AssertionError):
        gone_through(steps, write if at_work else lambda: None)
    assert index._tree.watchers == []
