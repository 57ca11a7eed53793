"""Breaker, overload mark, health, outliers and slow start on a clock of our own; all times by hand."""

import pytest

from gateway.fleet.breaker import Breaker, BreakerLimits, BreakerState, OverloadMark, Verdict
from gateway.fleet.guards import Guards
from gateway.fleet.health import Health, HealthLimits
from gateway.fleet.outliers import OutlierLimits, Outliers
from gateway.types import WorkerId

OK, FAIL, NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL
W = [WorkerId(f"http://w{i}:1") for i in range(8)]


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(BreakerLimits(failures=3, open_s=5.0, max_open_s=12.0, probe_s=60.0))
    for _ in range(3):
        breaker.record(FAIL, at)
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker(BreakerLimits(failures=3))
    for verdict in (FAIL, FAIL, OK, FAIL, FAIL):
        breaker.record(verdict, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    breaker.record(FAIL, 0.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.allows(0.0)
    assert breaker.retry_in(1.5) == 3.5


def test_4xx_429_and_leaving_clients_are_neutral() -> None:
    breaker = Breaker(BreakerLimits(failures=3))
    breaker.record(FAIL, 0.0)
    breaker.record(FAIL, 0.0)
    for _ in range(100):
        breaker.record(NEUTRAL, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    breaker.record(FAIL, 0.0)  # neutral ends do not mend either
    assert breaker.state(0.0) is BreakerState.OPEN


def test_half_open_admits_one_probe() -> None:
    breaker = opened()
    assert not breaker.allows(4.9)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert breaker.allows(5.0)
    assert breaker.begin(5.0)
    assert not breaker.allows(5.1)
    breaker.record(FAIL, 5.2)  # an old request's end: not the probe's
    assert breaker.state(5.2) is BreakerState.HALF_OPEN
    breaker.record(OK, 5.3, probe=True)
    assert breaker.state(5.3) is BreakerState.CLOSED
    assert not breaker.begin(5.4)


def test_each_failed_probe_doubles_the_rest_up_to_its_bound() -> None:
    breaker = opened()
    for probe_at, opens_until in ((5.0, 15.0), (15.0, 27.0), (27.0, 39.0)):  # rests 10, 12, 12
        assert breaker.begin(probe_at)
        breaker.record(FAIL, probe_at, probe=True)
        assert not breaker.allows(opens_until - 0.1)
        assert breaker.allows(opens_until)


def test_a_neutral_probe_frees_the_place_for_the_next() -> None:
    breaker = opened()
    assert breaker.begin(5.0)
    breaker.record(NEUTRAL, 6.0, probe=True)
    assert breaker.state(6.0) is BreakerState.HALF_OPEN
    assert breaker.allows(6.0)


def test_a_lost_probe_does_not_shut_it_for_good() -> None:
    breaker = opened()
    assert breaker.begin(5.0)
    assert not breaker.allows(64.9)
    assert breaker.allows(65.0)


def test_an_overload_mark_runs_out_by_itself() -> None:
    mark = OverloadMark(rest_s=1.0, max_rest_s=30.0)
    assert mark.remaining(0.0) == 0.0
    mark.set(10.0)
    assert (mark.remaining(10.25), mark.remaining(11.0)) == (0.75, 0.0)
    mark.set(20.0, retry_after=3600.0)  # what an engine asks for is bounded
    assert (mark.remaining(20.0), mark.remaining(50.0)) == (30.0, 0.0)
    mark.set(60.0, retry_after=5.0)
    mark.clear()
    assert mark.remaining(60.0) == 0.0


def test_health_turns_only_on_runs_of_equal_answers() -> None:
    health = Health(HealthLimits(unhealthy_after=3, healthy_after=2))
    for _ in range(10):
        assert not health.record(False, 0.0)
        assert health.healthy is None
    changes = [health.record(passed, 0.0) for passed in (True, False, False, True, False, False)]
    assert changes == [True, False, False, False, False, False]
    assert health.healthy
    assert health.record(False, 0.0)
    assert health.healthy is False
    assert [health.record(p, 0.0) for p in (True, False, True)] == [False, False, False]
    assert health.record(True, 100.0)
    assert health.healthy


def test_slow_start_after_a_return_and_not_at_the_first_start() -> None:
    health = Health(HealthLimits(healthy_after=1, unhealthy_after=1, slow_start_s=30.0, slow_start_from=0.2))
    health.record(True, 0.0)
    assert health.slow_start(0.0) == 1.0
    health.record(False, 10.0)
    health.record(True, 100.0)
    assert health.slow_start(100.0) == pytest.approx(0.2)
    assert health.slow_start(115.0) == pytest.approx(0.6)
    assert health.slow_start(130.0) == 1.0
    assert health.slow_start(131.0) == 1.0


def test_jitter_spreads_the_checks() -> None:
    limits = HealthLimits(interval_s=5.0, jitter=0.2)
    assert limits.wait(lambda: 0.0) == 4.0
    assert limits.wait(lambda: 0.5) == 5.0
    assert limits.wait(lambda: 1.0) == 6.0


def feed(outliers: Outliers, worker: WorkerId, requests: int, failures: int) -> None:
    for i in range(requests):
        outliers.record(worker, failed=i < failures)


def test_the_worker_that_fails_more_than_its_peers_rests() -> None:
    outliers = Outliers(OutlierLimits(window_s=30.0, eject_s=30.0))
    assert outliers.sweep(W[:4], 0.0) == []
    feed(outliers, W[0], 30, 12)  # 40 %
    for worker in W[1:4]:
        feed(outliers, worker, 30, 1)
    assert outliers.sweep(W[:4], 29.0) == []
    assert outliers.sweep(W[:4], 30.0) == [W[0]]
    assert outliers.ejected(W[0], 59.9)
    assert not outliers.ejected(W[0], 60.0)
    # again: the second rest is twice as long
    feed(outliers, W[0], 30, 30)
    feed(outliers, W[1], 30, 0)
    assert outliers.sweep(W[:4], 60.0) == [W[0]]
    assert outliers.ejected(W[0], 119.9)
    assert not outliers.ejected(W[0], 120.0)


def test_when_most_fail_alike_nobody_is_ejected() -> None:
    outliers = Outliers()
    outliers.sweep(W[:4], 0.0)
    for worker in W[:4]:
        feed(outliers, worker, 50, 40)
    assert outliers.sweep(W[:4], 30.0) == []


def test_never_more_than_a_part_of_the_fleet() -> None:
    outliers = Outliers(OutlierLimits(max_fraction=0.34))
    outliers.sweep(W, 0.0)
    for failing in W[:2]:
        feed(outliers, failing, 40, 36)
    feed(outliers, W[2], 40, 40)
    for fine in W[3:]:
        feed(outliers, fine, 200, 0)
    assert outliers.sweep(W, 30.0) == [W[2], W[0]]  # 8 × 0.34 → 2, worst first


def test_too_few_requests_prove_nothing() -> None:
    outliers = Outliers(OutlierLimits(min_requests=20))
    outliers.sweep(W[:2], 0.0)
    feed(outliers, W[0], 19, 19)
    feed(outliers, W[1], 100, 0)
    assert outliers.sweep(W[:2], 30.0) == []


def test_guards_say_why_and_start_slowly_after_a_breaker() -> None:
    guards = Guards(
        breaker=BreakerLimits(failures=1, open_s=5.0),
        health=HealthLimits(slow_start_s=10.0, slow_start_from=0.5),
    )
    worker = W[0]
    assert guards.refusal(worker, 0.0) is None
    guards.record(worker, FAIL, 0.0)
    assert guards.refusal(worker, 2.0) == "breaker open for another 3.0 s"
    assert guards.begin(worker, 5.0)
    assert guards.refusal(worker, 5.0) == "breaker half open: a probe is on its way"
    guards.record(worker, OK, 6.0, probe=True)
    assert guards.refusal(worker, 6.0) is None
    assert guards.slow_start(worker, 6.0) == 0.5
    assert guards.slow_start(worker, 16.0) == 1.0


def test_guards_and_overload() -> None:
    guards = Guards()
    guards.busy(W[0], 0.0, retry_after=2.0)
    assert guards.refusal(W[0], 0.5) is None  # backpressure, not failure
    assert guards.busy_for(W[0], 0.5) == 1.5
    guards.record(W[0], OK, 1.0)
    assert guards.busy_for(W[0], 1.0) == 0.0


def test_guards_bring_an_ejected_worker_back_slowly() -> None:
    guards = Guards(
        breaker=BreakerLimits(failures=1000),
        outliers=OutlierLimits(window_s=30.0, eject_s=30.0),
        health=HealthLimits(slow_start_s=10.0, slow_start_from=0.5),
    )
    guards.sweep(W[:3], 0.0)
    for _ in range(20):
        guards.record(W[0], FAIL, 1.0)
        guards.record(W[1], OK, 1.0)
    assert guards.sweep(W[:3], 30.0) == [W[0]]
    assert guards.refusal(W[0], 31.0) == "ejected: it fails much more often than its peers"
    guards.sweep(W[:3], 61.0)
    assert guards.refusal(W[0], 61.0) is None
    assert guards.slow_start(W[0], 61.0) == 0.5
