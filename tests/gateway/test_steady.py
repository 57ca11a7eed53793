"""A log about what comes and goes by the second."""

from gateway.steady import Steady


def said(sure_s: float, *seen: tuple[float, bool]) -> list[tuple[float, bool]]:
    """What is said of what was seen, each at its second."""
    steady, lines = Steady(sure_s), []
    for now, there in seen:
        if (there and steady.there(now) is not None) or (not there and steady.gone(now)):
            lines.append((now, there))
    return lines


def test_the_first_word_is_said_at_once() -> None:
    assert said(3, (0, True), (1, True)) == [(0, True)]
    assert said(3, (0, False), (1, False)) == [(0, False)]


def test_what_flaps_is_said_once_and_again_when_it_has_stayed() -> None:
    """Of a cluster's lost master: every other word arrives, for ten seconds."""
    flaps = [(float(second), second % 2 == 1) for second in range(1, 11)]
    assert said(3, (0, True), *flaps[1:]) == [(0, True), (2, False)]
    well = [(float(second), True) for second in range(11, 20)]
    assert said(3, (0, True), *flaps[1:], *well) == [(0, True), (2, False), (14, True)]


def test_it_tells_for_how_long_it_has_been_there() -> None:
    steady = Steady(3)
    assert steady.there(0) == 0
    assert steady.there(100) is None
    assert steady.gone(101)
    assert [steady.there(now) for now in (102, 104, 105.5, 106)] == [None, None, 3.5, None]
