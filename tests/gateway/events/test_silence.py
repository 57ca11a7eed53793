"""When an engine counts as silent: timelines in seconds, patience 30, three answers."""

from __future__ import annotations

from gateway.events.silence import SilenceWatch


def test_a_burst_whose_events_came_before_its_answers_is_not_silence() -> None:
    watch = SilenceWatch(patience=30.0, min_answers=3)
    watch.heard(0.4)  # of all ten, stored at once
    for _ in range(10):
        watch.answered(came=0.0, now=1.0)
    assert not watch.silent(1.0)
    assert not watch.silent(31.0)
    assert not watch.silent(1e6)


def test_idle_after_it_stays_quiet_and_later_answers_start_the_count_anew() -> None:
    watch = SilenceWatch(patience=30.0, min_answers=3)
    watch.heard(0.4)
    watch.answered(came=0.0, now=1.0)
    watch.answered(came=50.0, now=51.0)
    watch.answered(came=52.0, now=53.0)
    assert not watch.silent(100.0)  # two that nothing was heard of
    watch.answered(came=60.0, now=61.0)
    assert not watch.silent(80.9)
    assert watch.silent(81.0)  # 30 s after the first of the three


def test_an_engine_that_never_tells_anything() -> None:
    watch = SilenceWatch(patience=30.0, min_answers=3)
    for now in (1.0, 2.0, 3.0):
        watch.answered(came=0.0, now=now)
    assert not watch.silent(30.9)
    assert watch.silent(31.0)
    watch.heard(31.5)
    assert not watch.silent(62.0)


def test_an_event_right_behind_the_answer_takes_it_back() -> None:
    watch = SilenceWatch(patience=30.0, min_answers=3)
    for now in (1.0, 2.0, 3.0):
        watch.answered(came=now - 1.0, now=now)
    watch.heard(3.001)
    assert not watch.silent(40.0)
