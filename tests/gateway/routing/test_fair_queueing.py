"""Priorities and shares, by hand and by property."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.fair_queue import FairQueue, Item


def drain(queue: FairQueue) -> list[str]:
    served = []
    while (item := queue.pop()) is not None:
        served.append(item.key)
    return served


def test_one_key_is_served_in_order() -> None:
    queue = FairQueue(10)
    items = [queue.push("a")[0] for _ in range(5)]
    assert [queue.pop() for _ in range(6)] == [*items, None]


def test_a_flood_waits_behind_itself() -> None:
    queue = FairQueue(1000)
    for _ in range(100):
        queue.push("flood")
    assert [item.key for item in (queue.pop(), queue.pop()) if item] == ["flood", "flood"]
    queue.push("quiet")
    queue.push("quiet")
    # the quiet key's first goes next, its second after one more of the flood's
    assert drain(queue)[:4].count("quiet") == 2


def test_shares_follow_weights() -> None:
    queue = FairQueue(1000)
    for _ in range(300):
        queue.push("gold", weight=3.0)
        queue.push("basic", weight=1.0)
    assert Counter(drain(queue)[:200]) == {"gold": 150, "basic": 50}


def test_cost_is_what_is_shared() -> None:
    queue = FairQueue(1000)
    for _ in range(50):
        queue.push("long", cost=4.0)
        queue.push("short", cost=1.0)
    assert Counter(drain(queue)[:50]) == {"short": 40, "long": 10}


def test_a_lower_class_waits_for_every_higher_one() -> None:
    queue = FairQueue(10)
    queue.push("batch", priority=5)
    queue.push("a", priority=0)
    queue.push("urgent", priority=-1)
    queue.push("a", priority=0)
    assert drain(queue) == ["urgent", "a", "a", "batch"]


def test_who_must_leave_a_full_queue() -> None:
    queue = FairQueue(4)
    flood = [queue.push("flood")[0] for _ in range(4)]
    item, leaving = queue.push("flood")
    assert leaving is item  # its own key holds it all
    _, leaving = queue.push("quiet")
    assert leaving is flood[3]  # the newest of those who hold most
    _, leaving = queue.push("quiet")
    assert leaving is flood[2]
    _, leaving = queue.push("third")
    assert leaving is not None
    assert leaving.key in {"flood", "quiet"}
    assert len(queue) == 4


def test_a_heavier_key_may_hold_more_of_a_full_queue() -> None:
    queue = FairQueue(4)
    for _ in range(3):
        queue.push("gold", weight=3.0)
    basic, _ = queue.push("basic")
    _, leaving = queue.push("basic")
    assert leaving is not None
    assert leaving.key == "basic"
    assert basic.queued


def test_lower_classes_leave_a_full_queue_first() -> None:
    queue = FairQueue(2)
    queue.push("batch", priority=5)
    queue.push("a")
    _, leaving = queue.push("b")
    assert leaving is not None
    assert (leaving.key, leaving.priority) == ("batch", 5)


def test_put_back_stands_where_it_stood() -> None:
    queue = FairQueue(10)
    first, second = queue.push("a")[0], queue.push("a")[0]
    popped = queue.pop()
    assert popped is first
    queue.put_back(first)
    assert len(queue) == 2
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, second, None]


def test_those_who_leave_are_gone_and_give_their_turn_back() -> None:
    queue = FairQueue(10)
    items = [queue.push("a")[0] for _ in range(4)]
    for item in items[1:]:
        queue.remove(item)
        queue.remove(item)
    queue.push("b")
    queue.push("a")
    assert len(queue) == 3
    assert drain(queue) == ["a", "b", "a"]
    assert (len(queue), queue.pop()) == (0, None)


def test_memory_stays_bounded_under_churn() -> None:
    queue = FairQueue(8)
    queue.push("stays")
    for _ in range(5000):
        queue.push("flood")
    lane = queue._classes[0]
    assert len(queue) == 8
    assert len(lane.heap) < 400


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.sampled_from(["push", "pop", "drop"])))
)
def test_nothing_is_lost_or_served_twice(steps: list[tuple[str, int, str]]) -> None:
    queue, inside = FairQueue(6), list[Item]()
    for key, priority, step in steps:
        if step == "push":
            item, leaving = queue.push(key, priority=priority)
            inside.append(item)
            if leaving is not None:
                inside.remove(leaving)
        elif step == "pop":
            popped = queue.pop()
            assert (popped is None) == (not inside)
            if popped is not None:
                assert popped.priority == min(item.priority for item in inside)
                inside.remove(popped)
        elif inside:
            queue.remove(inside.pop(len(inside) // 2))
        assert len(queue) == len(inside) <= 6
    assert sorted(map(id, iter(queue.pop, None))) == sorted(map(id, inside))
