"""Who may take a lease that is missing, and when: times by hand."""

from __future__ import annotations

from gateway.events.turn import Turn


def test_a_replica_that_never_saw_a_lease_waits_for_nobody() -> None:
    turn = Turn(2.5)
    assert not turn.waits(0.0)
    turn.away()
    turn.missing(1.0)
    assert not turn.waits(1.0)


def test_a_lease_that_ran_out_is_taken_at_once() -> None:
    turn = Turn(2.5)
    turn.stood(4.0, now=10.0)
    turn.missing(14.0)
    assert not turn.waits(14.0)


def test_a_lease_that_vanished_is_its_writers_until_it_would_have_run_out() -> None:
    turn = Turn(2.5)
    turn.stood(4.0, now=10.0)
    turn.missing(11.0)
    assert [turn.waits(now) for now in (11.0, 13.9, 14.0)] == [True, True, False]


def test_behind_a_redis_that_was_away_writers_come_first_once() -> None:
    turn = Turn(2.5)
    turn.stood(4.0, now=10.0)
    turn.away()
    assert turn.waits(30.0), "whatever is found at the first look"
    turn.missing(30.0)
    turn.missing(31.0)
    assert [turn.waits(now) for now in (31.0, 32.4, 32.5)] == [True, True, False]
    turn.stood(5.0, now=33.0)
    turn.missing(38.0)
    assert not turn.waits(38.0)
