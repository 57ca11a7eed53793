"""Which engine is asked for tokens, where some of them failed."""

from __future__ import annotations

from gateway.prompt.engine_choice import AskedEngine, EngineChoice


class Fleet:
    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        self.now = 100.0
        self.choice = EngineChoice(lambda: self.urls, clock=lambda: self.now, rest=1.0, max_rest=3.0)

    def engine(self, url: str) -> AskedEngine:
        """The one whose turn it is, sooner or later."""
        for _ in self.urls:
            engine = self.choice.next()
            if engine is not None and engine.url == url:
                return engine
        raise AssertionError(f"{url} is passed over")

    def asked(self) -> set[str]:
        engines = [self.choice.next() for _ in range(2 * len(self.urls))]
        return {engine.url for engine in engines if engine is not None}


def test_they_take_turns() -> None:
    fleet = Fleet("a", "b", "c")
    turns = [engine.url for _ in range(6) if (engine := fleet.choice.next()) is not None]
    assert turns == ["b", "c", "a", "b", "c", "a"]


def test_each_rests_by_itself_and_longer_each_time() -> None:
    fleet = Fleet("a", "b")
    a = fleet.engine("a")
    for rest in (1.0, 2.0, 3.0, 3.0):
        fleet.choice.failed(a, "it hangs")
        assert fleet.asked() == {"b"}
        fleet.now += rest - 0.01
        # of calls that were under way together only the first counts
        fleet.choice.failed(a, "it hangs")
        assert fleet.asked() == {"b"}
        fleet.now += 0.01
        assert fleet.asked() == {"a", "b"}
    fleet.choice.answered(a)
    fleet.choice.failed(a, "it hangs")
    fleet.now += 1.0
    assert fleet.asked() == {"a", "b"}


def test_all_rest_where_each_does() -> None:
    fleet = Fleet("a", "b")
    fleet.choice.failed(fleet.engine("a"), "one")
    assert not fleet.choice.resting
    fleet.now += 0.5
    fleet.choice.failed(fleet.engine("b"), "two")
    assert (fleet.choice.resting, fleet.choice.reason, fleet.choice.next()) == (True, "two", None)
    fleet.now += 0.5
    assert (fleet.choice.resting, fleet.asked()) == (False, {"a"})


def test_who_failed_last_is_asked_by_one_at_a_time_unless_nobody_else_is_there() -> None:
    fleet = Fleet("a", "b")
    a = fleet.engine("a")
    fleet.choice.failed(a, "it hangs")
    fleet.now += 1.0
    a.under_way += 1
    assert fleet.asked() == {"b"}
    fleet.urls.remove("b")
    assert fleet.asked() == {"a"}


def test_another_than_the_first() -> None:
    fleet = Fleet("a", "b")
    a = fleet.engine("a")
    assert {other.url for _ in range(4) if (other := fleet.choice.next(but=a)) is not None} == {"b"}
    fleet.choice.failed(fleet.engine("b"), "it hangs")
    assert fleet.choice.next(but=a) is None


def test_nobody_there_is_not_rest_and_who_left_is_forgotten() -> None:
    fleet = Fleet("a")
    fleet.choice.failed(fleet.engine("a"), "it hangs")
    assert repr(fleet.choice) == "<EngineChoice 1 of 1 engines failing>"
    fleet.urls.clear()
    assert (fleet.choice.resting, fleet.choice.next()) == (False, None)
    fleet.urls.append("a")
    assert fleet.asked() == {"a"}
